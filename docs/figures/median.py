"""Tables and pictures of the page about the median, reproduction/median.md.

    python docs/figures/median.py

The experiment is in records/median: runs of a million steps, and shorter ones of further sizes.
Those in records/median-speed have the same settings and had the device to themselves: they tell
what a step costs. In records/median-settings are short runs, in each of which one setting was
changed. In records/median-inner are directories of runs, of which config.json, log.jsonl
and record.json are enough: statistics of the inner loops are in the logs alone.
In records/median-rates are long runs of the rivals with smaller learning rates, stopped
before their end. median_networks.py wrote records/median-networks.

What `tables` makes is printed, and put into the page.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from changed_settings import Changed, changed_groups
from page_tables import group_by, ran_on, read_folder, refresh_page, span
from step_times import check_solo_runs, with_solo_times

from equipool.experiments.median.data import DISTRIBUTIONS
from equipool.report import RunResult, Summary
from equipool.report.curves import draw_curves, draw_inner, inner_curves
from equipool.report.groups import Group, mean_of
from equipool.report.tables import number, spread

FIGURES = Path(__file__).parent
PAGE = FIGURES.parent / "reproduction" / "median.md"
RECORDS = FIGURES.parents[1] / "records"

MAIN_STEPS = 1_000_000
SHOWN_STEPS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 20)  # of the search

Network = dict[str, Any]  # what median_networks.py wrote of one


def split(runs: Sequence[RunResult]) -> tuple[list[Group], list[Group]]:
    """The main experiment, and further sizes, each in groups of one method and size."""
    long = [run for run in runs if _is_long(run)]
    short = [run for run in runs if not _is_long(run)]
    return _in_order(long), _in_order(short)


def _is_long(run: RunResult) -> bool:
    steps: int = run.config["training"]["steps"]
    return steps >= MAIN_STEPS


def _in_order(runs: Sequence[RunResult]) -> list[Group]:
    """By size, the best first."""

    groups = group_by(runs, ("aggregation", "embedding"))
    return sorted(groups, key=lambda group: (group.size, _error(group)))


def _error(group: Group) -> float:
    """By which groups are ordered."""
    mean = group.mean()
    return math.inf if mean is None else mean


def results(groups: Sequence[Group]) -> Summary:
    """Mean squared errors after the last step, over the seeds, and beside those of the rivals."""
    headings = (
        "D", "method", "seeds", "steps", "mean squared error", "/ best rival's", "best seed",
        "/ best rival's best", *DISTRIBUTIONS, "parameters", "spikes", "skipped",
    )  # fmt: skip
    return Summary("results", headings, tuple(_result(group, groups) for group in groups))


def _result(group: Group, groups: Sequence[Group]) -> tuple[str, ...]:
    runs = group.runs
    return (
        str(group.size),
        group.method,
        str(len(runs)),
        span([run.curve[-1]["step"] for run in runs]),
        spread(group.finals()),
        over_rivals(group, groups, Group.mean),
        number(group.best_final()),
        over_rivals(group, groups, Group.best_final),
        *(number(mean_of(group.final_values(f"mse_{name}"))) for name in DISTRIBUTIONS),
        f"{runs[0].num_parameters:,}",
        str(sum(run.spikes for run in runs)),
        str(sum(run.skipped for run in runs)),
    )


def over_rivals(
    group: Group, groups: Sequence[Group], error: Callable[[Group], float | None]
) -> str:
    """An error over the smallest of other aggregations of the same size."""
    own = error(group)
    rivals = [
        error(other)
        for other in groups
        if other.size == group.size
        and other.settings["aggregation"] != group.settings["aggregation"]
    ]
    finite = [value for value in rivals if value is not None]
    return "-" if own is None or not finite else f"{own / min(finite):.3g}"


def seconds(groups: Sequence[Group]) -> Summary:
    """Mean errors after equal seconds, those that each method takes for all its steps and half of
    the shortest; and at which step that was."""
    whole = sorted({max(run.training_seconds for run in group.runs) for group in groups})
    moments = [whole[0] / 2, *whole] if whole else []
    headings = ("D", "method", "ms per step", *(f"after {moment:,.0f} s" for moment in moments))
    rows = (
        (
            str(group.size),
            group.method,
            f"{1e3 * group.runs[0].training_seconds / group.runs[0].steps:.3g}",
            *(_after(group, moment) for moment in moments),
        )
        for group in groups
    )
    return Summary("seconds", headings, tuple(rows))


def _after(group: Group, moment: float) -> str:
    found = [run.evaluation_at(moment) for run in group.runs]
    steps = [entry["step"] for entry in found if entry is not None]
    if len(steps) < len(found):
        return "-"
    return f"{number(group.mean_at(moment))} (step {span(steps)})"


def settings(runs: Sequence[RunResult]) -> Summary:
    """What came of changing one setting or another, the best first."""
    headings = (
        "what was changed", "seeds", "steps", "mean squared error", "/ unchanged", "best seed",
        "spikes", "skipped",
    )  # fmt: skip
    found = sorted(changed_groups(runs), key=lambda changed: _error(changed.group))
    return Summary("settings", headings, tuple(map(_setting, found)))


def _setting(changed: Changed) -> tuple[str, ...]:
    group, own, usual = changed.group, changed.group.mean(), changed.usual.mean()
    runs = group.runs
    return (
        changed.name(),
        str(len(runs)),
        span([run.curve[-1]["step"] for run in runs]),
        spread(group.finals()),
        "-" if own is None or usual is None else f"{own / usual:.3g}",
        number(group.best_final()),
        str(sum(run.spikes for run in runs)),
        str(sum(run.skipped for run in runs)),
    )


def rates(runs: Sequence[RunResult], stopped: Sequence[RunResult]) -> Summary:
    """Errors at equal steps of runs that were stopped, beside those of the experiment's run of the
    same method and seed."""
    tried = [_told_apart(run) for run in stopped]
    long = [run for run in runs if _is_long(run) and _told_apart(run) in tried]
    found = sorted([*long, *stopped], key=lambda run: (_told_apart(run), -_rate(run)))
    seen = sorted({entry["step"] for run in stopped for entry in run.curve})
    rows = (
        (run.config["fields"]["aggregation"], f"{_rate(run):g}", *(_at(run, step) for step in seen))
        for run in found
    )
    headings = ("method", "learning rate", *(f"step {step:,}" for step in seen))
    return Summary("rates", headings, tuple(rows))


def _told_apart(run: RunResult) -> tuple[Any, ...]:
    return tuple(run.config["fields"][name] for name in ("aggregation", "embedding", "seed"))


def _rate(run: RunResult) -> float:
    rate: float = run.config["training"]["learning_rate"]
    return rate


def _at(run: RunResult, step: int) -> str:
    """The error at a step; `-` where the run was not evaluated."""
    return next((number(run.value(e)) for e in run.curve if e["step"] == step), "-")


def frozen(networks: Sequence[Network]) -> Summary:
    """How many batches count as spikes while the weights stay as they are."""
    shares: dict[str, list[float]] = {}
    for one in networks:
        shares.setdefault(one["config"]["fields"]["aggregation"], []).append(one["spikes"])
    rows = (
        (method, str(len(found)), ", ".join(f"{share:.2%}" for share in found))
        for method, found in sorted(shares.items(), key=lambda item: -max(item[1]))
    )
    headings = ("method", "seeds", "batches that are spikes, by seed")
    return Summary("frozen", headings, tuple(rows))


def search(networks: Sequence[Network]) -> Summary:
    """What the steps of the search do, over the networks; in bold the one of the training's end."""
    headings = (
        "inner steps", "seeds", "mean squared error", "length of the step", "as long as the limit",
        "gradient / first one",
    )  # fmt: skip
    found = [one for one in networks if "search" in one]
    trained = {one["config"]["fields"]["inner_steps"] for one in found}
    paths = list(zip(*(one["search"] for one in found), strict=True))
    chosen = [path for path in paths if path[0]["steps"] in SHOWN_STEPS]
    firsts = [entry["gradient"] for entry in paths[0]] if paths else []
    return Summary("search", headings, tuple(_search_row(path, firsts, trained) for path in chosen))


def _search_row(
    path: Sequence[Mapping[str, float]], firsts: Sequence[float], trained: set[int]
) -> tuple[str, ...]:
    steps = int(path[0]["steps"])
    ratios = [entry["gradient"] / first for entry, first in zip(path, firsts, strict=True)]
    return (
        f"**{steps}**" if steps in trained else str(steps),
        str(len(path)),
        spread([entry["mse"] for entry in path]),
        "-" if steps == 0 else span([entry["length"] for entry in path], ".2f"),
        "-" if steps == 0 else span([entry["at_limit"] for entry in path], ".0%"),
        span(ratios, ".2g"),
    )


def tables(
    runs: Sequence[RunResult],
    solo: Sequence[RunResult],
    tried: Sequence[RunResult],
    stopped: Sequence[RunResult] = (),
    networks: Sequence[Network] = (),
) -> dict[str, Summary | str]:
    """All tables of the page, and what the runs ran on, by name."""
    long, short = split(with_solo_times(runs, solo))
    check_solo_runs([run for group in long for run in group.runs], solo)
    return {
        "ran_on": ran_on(runs),
        "results": results(long),
        "sizes": results(short),
        "seconds": seconds(long),
        "settings": settings(tried),
        "rates": rates(runs, stopped),
        "frozen": frozen(networks),
        "search": search(networks),
    }


def pictures(
    runs: Sequence[RunResult], solo: Sequence[RunResult], logged: Sequence[RunResult]
) -> dict[str, bytes]:
    """All pictures of the page for which there are runs, by name."""
    long, _ = split(with_solo_times(runs, solo))
    inner = inner_curves(group_by(logged, ("aggregation", "embedding")))
    found = {"curves": draw_curves(long)} if long else {}
    if inner:
        found["inner"] = draw_inner(inner)
    return found


def read() -> list[list[RunResult]]:
    """The experiment, solo runs, runs with other settings, those that were stopped, and those of
    which there are logs."""
    names = ("median", "median-speed", "median-settings", "median-rates", "median-inner")
    return [read_folder(RECORDS / name) for name in names]


def read_networks() -> list[Network]:
    """What median_networks.py wrote, of each network."""
    files = sorted((RECORDS / "median-networks").glob("*.json"))
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def main() -> None:
    runs, solo, tried, stopped, logged = read()
    refresh_page(PAGE, tables(runs, solo, tried, stopped, read_networks()))
    for name, picture in pictures(runs, solo, logged).items():
        (FIGURES / f"median-{name}.png").write_bytes(picture)


if __name__ == "__main__":
    main()
