"""The runs of a sweep, and how far each is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipool.cli.flags import Flag
from equipool.cli.settings import Values, build, combinations, run_name
from equipool.training import ConfigMismatchError, Plan, Task
from equipool.training.config import chosen_config, differences_of_choice
from equipool.training.folder import RunFolder


@dataclass(frozen=True)
class Planned:
    """A run of a sweep: what to train, and whether it is begun or done."""

    plan: Plan
    begun: bool
    done: bool

    @property
    def name(self) -> str:
        return Path(self.plan.out).name

    def is_done_now(self) -> bool:
        return RunFolder(self.plan.out).record.exists()


def plan_runs(
    kind: type[Task], values: Values, axes: Mapping[Flag, tuple[Any, ...]], out: Path
) -> list[Planned]:
    """A run for each combination of the axes' values.

    A run of the same config that is in `out` already is taken as it is, under whatever name. A new
    one gets a name that tells its values; where a run of another config has that name, this raises
    `ConfigMismatchError` with the difference.
    """
    there = _runs_in(out)
    planned = [
        _planned(kind, chosen, out / run_name(kind, chosen, axes), there)
        for chosen in combinations(values, axes)
    ]
    names = [one.name for one in planned]
    doubled = [name for name, number in Counter(names).items() if number > 1]
    if doubled:
        raise ValueError(
            f"two of the runs would be called {doubled[0]}: expected values that are told apart, "
            "or a sweep and an --out for each"
        )
    return planned


def _runs_in(out: Path) -> dict[Path, dict[str, Any]]:
    files = sorted(out.glob("*/config.json"))
    return {file.parent: RunFolder(file.parent).read_config() for file in files}


def _planned(
    kind: type[Task], values: Values, folder: Path, there: Mapping[Path, dict[str, Any]]
) -> Planned:
    task, config = build(kind, values)
    wanted = chosen_config(task, config)  # the data is looked at when a run starts
    same = [path for path, saved in there.items() if not differences_of_choice(saved, wanted)]
    if not same and folder in there:
        different = differences_of_choice(there[folder], wanted)
        lines = "\n".join(f"  {line}" for line in different)
        raise ConfigMismatchError(
            f"{folder} holds a run of another config; choose another --out or the same settings:\n"
            f"{lines}"
        )
    place = same[0] if same else folder
    return Planned(
        Plan(task, config, place),
        begun=bool(same),
        done=bool(same) and RunFolder(place).record.exists(),
    )
