"""`equipool bench stability`: which options keep the training of the layer from spiking."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor

from equipool.bench.record import git_commit
from equipool.bench.run import now
from equipool.bench.stability_networks import (
    Gradient,
    StackedRegressors,
    compiled_gradient,
    summed_gradient,
)
from equipool.bench.stability_options import (
    TRIALS,
    Option,
    Setting,
    Trial,
    build_network,
)
from equipool.bench.stability_training import (
    CPU,
    Report,
    Sizes,
    count_not_finite,
    count_spikes,
    evaluate,
    train,
)
from equipool.environment import hardware, versions

FORMAT = 1
COLUMNS = (
    "option", "spikes", "seeds", "not finite", "largest loss", "error", "its quartiles", "step size"
)  # fmt: skip


SIZES = Sizes()


@dataclass(frozen=True)
class Plan:
    """How much is run."""

    seeds: int = 20
    steps: int = 1000
    sizes: Sizes = SIZES
    gradient: Gradient = summed_gradient


QUICK = Plan(seeds=2, steps=12, sizes=Sizes(set_size=5, batch_size=4, evaluation_sets=8))


@dataclass(frozen=True)
class Outcome:
    """What became of an option's seeds, a number for each; None where it is not finite."""

    setting: str
    option: str
    spikes: list[int]
    not_finite: list[int]  # steps whose loss is not
    largest: list[float | None]  # loss of the second half of the steps
    errors: list[float | None]
    learning_rates: list[float | None]  # of the inner steps, as learned
    momenta: list[float | None]


@dataclass(frozen=True)
class StabilityRecord:
    """A run."""

    command: str
    date: str
    commit: str
    versions: dict[str, str]
    hardware: dict[str, str | int]
    seeds: int
    steps: int
    sizes: Sizes
    rows: list[Outcome] = field(default_factory=list)
    format: int = FORMAT

    def write(self, file: Path) -> None:
        """As JSON with an outcome's list on each line."""
        file.parent.mkdir(parents=True, exist_ok=True)
        content = asdict(self) | {"rows": []}
        rows = ",\n".join(_row_text(row) for row in self.rows)
        text = json.dumps(content, indent=1).replace('"rows": []', f'"rows": [\n{rows}\n ]')
        file.write_text(text + "\n", encoding="utf-8")


def read_stability(file: Path) -> StabilityRecord:
    """Read what `StabilityRecord.write` wrote."""
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if content.get("format") != FORMAT:
        raise ValueError(f"{file} has format {content.get('format')}, expected {FORMAT}")
    content["sizes"] = Sizes(**content["sizes"])
    content["rows"] = [Outcome(**row) for row in content["rows"]]
    return StabilityRecord(**content)


def measure(
    option: Option, setting: Setting, plan: Plan, report: Report = lambda step: None
) -> Outcome:
    """Train all seeds of an option."""
    networks = StackedRegressors(
        [build_network(option, setting, seed) for seed in range(plan.seeds)],
        plan.sizes.batch_size,
        plan.gradient,
        option.max_y_weight,
    )
    losses = train(networks, plan.sizes, option.recipe, setting.learning_rate, plan.steps, report)
    learned = networks.learned_scalars()
    return Outcome(
        setting.name,
        option.name,
        count_spikes(losses).tolist(),
        count_not_finite(losses).tolist(),
        _finite(losses[len(losses) // 2 :].amax(0)),
        _finite(evaluate(networks, plan.sizes)),
        _finite(learned["raw_learning_rate"]),
        _finite(learned["raw_momentum"]),
    )


def stability(
    seeds: Annotated[int, typer.Option(min=1, help="networks trained for each option")] = 20,
    steps: Annotated[int, typer.Option(min=1, help="training steps of each")] = 1000,
    option: Annotated[list[str] | None, typer.Option(help="only this one; repeatable")] = None,
    setting: Annotated[list[str] | None, typer.Option(help="only this one; repeatable")] = None,
    quick: Annotated[bool, typer.Option(help="a few steps, to see that it runs")] = False,
    out: Annotated[Path | None, typer.Option(help="write the record to this JSON file")] = None,
    commit: Annotated[str | None, typer.Option(help="where the code is no git checkout")] = None,
) -> None:
    """Count spikes in the training of the layer, with and without what should prevent them."""
    _check("option", option, [trial.option.name for trial in TRIALS])
    _check("setting", setting, [trial.setting.name for trial in TRIALS])
    trials = [trial for trial in TRIALS if trial.is_among(option, setting)]
    plan = QUICK if quick else Plan(seeds, steps, gradient=compiled_gradient())
    command = _command(plan, quick, option, setting)
    console = Console(width=140)
    record = run(trials, plan, command, commit or git_commit(), console, out)
    for chosen in dict.fromkeys(trial.setting for trial in trials):
        console.print(f"{chosen.name}: {chosen.description}")
        console.print(table(record, chosen.name))


def run(
    trials: Sequence[Trial],
    plan: Plan,
    command: str,
    commit: str,
    console: Console,
    out: Path | None = None,
) -> StabilityRecord:
    """Go through the trials with a progress bar. What has been measured is written at once, and
    what the file has of the same run already is not measured again."""
    record = StabilityRecord(
        command, now(), commit, versions(), hardware(CPU), plan.seeds, plan.steps, plan.sizes
    )
    if out is not None and out.exists():
        record.rows.extend(_measured(read_stability(out), record))
        found = {(row.option, row.setting) for row in record.rows}
        trials = [trial for trial in trials if trial.names() not in found]
    columns = (TextColumn("{task.description:<70}"), BarColumn(), MofNCompleteColumn(),
               TimeElapsedColumn())  # fmt: skip
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(trials) * plan.steps)
        for option, setting in trials:
            progress.update(task, description=f"{setting.name}: {option.name}")
            row = measure(option, setting, plan, lambda step: progress.advance(task))
            record.rows.append(row)
            if out is not None:
                record.write(out)
    return record


def _measured(old: StabilityRecord, new: StabilityRecord) -> list[Outcome]:
    """The old record's rows, where it is of the same run."""
    for name in ("commit", "versions", "hardware", "seeds", "steps", "sizes"):
        before, now = getattr(old, name), getattr(new, name)
        if before != now:
            raise ValueError(f"the record that is there has {name} {before}, expected {now}")
    return old.rows


def table(record: StabilityRecord, setting: str) -> Table:
    """For the console."""
    made = Table(*COLUMNS)
    for row in record.rows:
        if row.setting == setting:
            made.add_row(*_cells(row))
    return made


def markdown(record: StabilityRecord, setting: str) -> str:
    """For the documentation."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    lines += [f"| {' | '.join(_cells(row))} |" for row in record.rows if row.setting == setting]
    return "\n".join(lines)


def quartiles(values: Sequence[float | None]) -> tuple[float, float, float]:
    """The first, the median and the third; a value that is not finite is larger than any."""
    ordered = sorted(math.inf if value is None else value for value in values)
    first, middle, third = (ordered[round(q * (len(ordered) - 1))] for q in (0.25, 0.5, 0.75))
    return first, middle, third


def _cells(row: Outcome) -> tuple[str, ...]:
    first, middle, third = quartiles(row.errors)
    return (
        row.option,
        f"{sum(row.spikes)}",
        f"{sum(count > 0 for count in row.spikes)}",
        f"{sum(row.not_finite)}",
        f"{quartiles(row.largest)[1]:.1e}",
        f"{middle:.1e}",
        f"{first:.1e} to {third:.1e}",
        f"{quartiles(row.learning_rates)[1]:.3f}",
    )


def _row_text(row: Outcome) -> str:
    parts = (f"   {json.dumps(name)}: {json.dumps(value)}" for name, value in asdict(row).items())
    return "  {\n" + ",\n".join(parts) + "\n  }"


def _finite(values: Tensor) -> list[float | None]:
    return [float(f"{value:.4g}") if math.isfinite(value) else None for value in values.tolist()]


def _check(kind: str, names: list[str] | None, known: Sequence[str]) -> None:
    for name in names or ():
        if name not in known:
            expected = ", ".join(dict.fromkeys(known))
            raise typer.BadParameter(f"--{kind} is {name}, expected one of {expected}")


def _command(plan: Plan, quick: bool, options: list[str] | None, settings: list[str] | None) -> str:
    """The command that repeats the run."""
    size = "--quick" if quick else f"--seeds {plan.seeds} --steps {plan.steps}"
    parts = [f"equipool bench stability {size}"]
    parts += [f'--option "{name}"' for name in options or ()]
    parts += [f'--setting "{name}"' for name in settings or ()]
    return " ".join(parts)
