"""Tables and figures of the page about the median, reproduction/median.md.

    python docs/figures/median.py

Reads these folders of records/:
    median: the experiment, runs of a million steps, and shorter ones of other sizes
    median-speed: solo runs with the same settings, which measure what a step costs
    median-settings: short runs, in each of which one setting was changed
    median-inner: run directories, whose logs have the statistics of the inner loops
    median-rates: long runs of the rivals with smaller learning rates, stopped early
    median-networks: written by median_networks.py

Prints the tables and puts them into the page.
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
from equipool.report import RunResult, Table
from equipool.report.figures import draw_curves, draw_inner, inner_curves
from equipool.report.groups import Group, mean_of
from equipool.report.tables import number, spread

FIGURES = Path(__file__).parent
PAGE = FIGURES.parent / "reproduction" / "median.md"
RECORDS = FIGURES.parents[1] / "records"

MAIN_STEPS = 1_000_000
SHOWN_STEPS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 20)  # of the search

Network = dict[str, Any]  # what median_networks.py wrote about one


def split(runs: Sequence[RunResult]) -> tuple[list[Group], list[Group]]:
    """The main experiment and the other sizes, each in groups of one method and size."""
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
    """Orders groups; the mean, and infinity if it is not finite."""
    mean = group.mean()
    return math.inf if mean is None else mean


def results(groups: Sequence[Group]) -> Table:
    """Mean squared errors after the last step over the seeds, compared with the rivals."""
    headings = (
        "D", "method", "seeds", "steps", "mean squared error", "/ best rival's", "best seed",
        "/ best rival's best", *DISTRIBUTIONS, "parameters", "spikes", "skipped",
    )  # fmt: skip
    return Table("results", headings, tuple(_result(group, groups) for group in groups))


def _result(group: Group, groups: Sequence[Group]) -> tuple[str, ...]:
    runs = group.runs
    return (
        str(group.size),
        group.method,
        str(len(runs)),
        span([run.curve[-1]["step"] for run in runs]),
        spread(group.final_values()),
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
    """An error divided by the smallest of the other aggregations of the same size."""
    own = error(group)
    rivals = [
        error(other)
        for other in groups
        if other.size == group.size
        and other.settings["aggregation"] != group.settings["aggregation"]
    ]
    finite = [value for value in rivals if value is not None]
    return "-" if own is None or not finite else f"{own / min(finite):.3g}"


def seconds(groups: Sequence[Group]) -> Table:
    """Mean errors after equal training times, and the step each method had reached: the times that
    the methods take for all their steps, and half of the shortest."""
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
    return Table("seconds", headings, tuple(rows))


def _after(group: Group, moment: float) -> str:
    found = [run.evaluation_at(moment) for run in group.runs]
    steps = [entry["step"] for entry in found if entry is not None]
    if len(steps) < len(found):
        return "-"
    return f"{number(group.mean_at(moment))} (step {span(steps)})"


def settings(runs: Sequence[RunResult]) -> Table:
    """Errors with one setting or another changed, best first."""
    headings = (
        "what was changed", "seeds", "steps", "mean squared error", "/ unchanged", "best seed",
        "spikes", "skipped",
    )  # fmt: skip
    found = sorted(changed_groups(runs), key=lambda changed: _error(changed.group))
    return Table("settings", headings, tuple(map(_setting, found)))


def _setting(changed: Changed) -> tuple[str, ...]:
    group, own, usual = changed.group, changed.group.mean(), changed.usual.mean()
    runs = group.runs
    return (
        changed.name(),
        str(len(runs)),
        span([run.curve[-1]["step"] for run in runs]),
        spread(group.final_values()),
        "-" if own is None or usual is None else f"{own / usual:.3g}",
        number(group.best_final()),
        str(sum(run.spikes for run in runs)),
        str(sum(run.skipped for run in runs)),
    )


def rates(runs: Sequence[RunResult], stopped: Sequence[RunResult]) -> Table:
    """Errors of the stopped runs, and at the same steps those of the experiment's run of the same
    method and seed."""
    tried = [_identity(run) for run in stopped]
    long = [run for run in runs if _is_long(run) and _identity(run) in tried]
    found = sorted([*long, *stopped], key=lambda run: (_identity(run), -_rate(run)))
    seen = sorted({entry["step"] for run in stopped for entry in run.curve})
    rows = (
        (run.config["fields"]["aggregation"], f"{_rate(run):g}", *(_at(run, step) for step in seen))
        for run in found
    )
    headings = ("method", "learning rate", *(f"step {step:,}" for step in seen))
    return Table("rates", headings, tuple(rows))


def _identity(run: RunResult) -> tuple[Any, ...]:
    return tuple(run.config["fields"][name] for name in ("aggregation", "embedding", "seed"))


def _rate(run: RunResult) -> float:
    rate: float = run.config["training"]["learning_rate"]
    return rate


def _at(run: RunResult, step: int) -> str:
    """The error at a step; `-` if the run was not evaluated there."""
    return next((number(run.value(e)) for e in run.curve if e["step"] == step), "-")


def frozen(networks: Sequence[Network]) -> Table:
    """The share of batches that count as spikes while the weights do not change."""
    shares: dict[str, list[float]] = {}
    for one in networks:
        shares.setdefault(one["config"]["fields"]["aggregation"], []).append(one["spikes"])
    rows = (
        (method, str(len(found)), ", ".join(f"{share:.2%}" for share in found))
        for method, found in sorted(shares.items(), key=lambda item: -max(item[1]))
    )
    headings = ("method", "seeds", "batches that are spikes, by seed")
    return Table("frozen", headings, tuple(rows))


def search(networks: Sequence[Network]) -> Table:
    """What each step of the search does, over the networks; the last one of training is bold."""
    headings = (
        "inner steps", "seeds", "mean squared error", "length of the step", "as long as the limit",
        "gradient / first one",
    )  # fmt: skip
    found = [one for one in networks if "search" in one]
    trained = {one["config"]["fields"]["inner_steps"] for one in found}
    paths = list(zip(*(one["search"] for one in found), strict=True))
    chosen = [path for path in paths if path[0]["steps"] in SHOWN_STEPS]
    firsts = [entry["gradient"] for entry in paths[0]] if paths else []
    return Table("search", headings, tuple(_search_row(path, firsts, trained) for path in chosen))


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
) -> dict[str, Table | str]:
    """All tables of the page, and the hardware of the runs, by name."""
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
    """All figures of the page for which there are runs, by name."""
    long, _ = split(with_solo_times(runs, solo))
    inner = inner_curves(group_by(logged, ("aggregation", "embedding")))
    found = {"curves": draw_curves(long)} if long else {}
    if inner:
        found["inner"] = draw_inner(inner)
    return found


def read() -> list[list[RunResult]]:
    """The experiment, solo runs, runs with other settings, stopped runs, and runs with logs."""
    names = ("median", "median-speed", "median-settings", "median-rates", "median-inner")
    return [read_folder(RECORDS / name) for name in names]


def read_networks() -> list[Network]:
    """What median_networks.py wrote about each network."""
    files = sorted((RECORDS / "median-networks").glob("*.json"))
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def main() -> None:
    runs, solo, tried, stopped, logged = read()
    refresh_page(PAGE, tables(runs, solo, tried, stopped, read_networks()))
    for name, picture in pictures(runs, solo, logged).items():
        (FIGURES / f"median-{name}.png").write_bytes(picture)


if __name__ == "__main__":
    main()
