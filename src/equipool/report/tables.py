"""Tables of runs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from equipool.report.groups import SIZE, Group, group_runs, mean_of, shorten
from equipool.report.runs import Entry, RunResult


@dataclass(frozen=True)
class Summary:
    """A table with one row per group of runs."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def markdown(summary: Summary) -> str:
    """The table in Markdown."""
    lines = [summary.headings, tuple("---" for _ in summary.headings), *summary.rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def number(value: float | None) -> str:
    """A number with three significant digits."""
    return "not finite" if value is None else f"{value:.3g}"


def spread(values: Sequence[float | None]) -> str:
    """Mean and standard deviation.

    Example:
        >>> spread([1.0, 3.0]), spread([0.5]), spread([1.0, None])
        ('2 ± 1.41', '0.5', 'not finite')
    """
    finite = [value for value in values if value is not None]
    mean = number(mean_of(values))
    if len(finite) < max(2, len(values)):
        return mean
    return f"{mean} ± {number(statistics.stdev(finite))}"


def summaries(runs: Sequence[RunResult]) -> list[Summary]:
    """The table of the monitored metric, and that of the task's further metrics; no table if no
    run has been evaluated."""
    if not any(run.curve for run in runs):
        return []
    found = [summarize(runs)]
    return [*found, summarize_reported(runs)] if runs[0].kind.reported else found


def summarize(runs: Sequence[RunResult]) -> Summary:
    """Results over the seeds: one row per group, sorted by size and then best first.

    `mean` is that of the last evaluations, with its standard deviation, `best run` the last
    evaluation of the best run, `best evaluation` the best of all runs at any step. `/ best` is the
    mean divided by the best mean of the same size. The last column is the mean after the training
    time that all runs had (`-` if a run had not been evaluated by then); it is left out if runs, or
    pieces of one, ran on different hardware or shared it differently.
    """
    groups = shorten(group_runs(runs))
    seconds = equal_seconds(groups)
    headings = [
        *groups[0].settings,
        "runs",
        "last step",
        "mean",
        "best run",
        "best evaluation",
        "/ best",
    ]
    if seconds is not None:
        headings.append(f"mean at {seconds:.3g} s")
    rows = [_row(group, groups, seconds) for group in groups]
    kind = groups[0].runs[0].kind
    return Summary(f"{kind.name}: {kind.monitor}", tuple(headings), tuple(rows))


def _row(group: Group, groups: Sequence[Group], seconds: float | None) -> tuple[str, ...]:
    cells = [
        *setting_cells(group),
        _count(group),
        _steps(group),
        spread(group.finals()),
        number(group.best_final()),
        number(group.best_evaluation()),
        ratio(group, groups),
    ]
    if seconds is not None:
        evaluated = all(run.evaluation_at(seconds) for run in group.runs)
        cells.append(number(group.mean_at(seconds)) if evaluated else "-")
    return tuple(cells)


def summarize_reported(runs: Sequence[RunResult]) -> Summary:
    """Means and standard deviations over the seeds of the task's further metrics: of the last
    evaluations, and of the best ones by the monitored metric."""
    groups = shorten(group_runs(runs))
    kind = groups[0].runs[0].kind
    headings = [*groups[0].settings, "runs"]
    for metric in kind.reported:
        headings += [metric, f"{metric} at the best {kind.monitor}"]
    rows = []
    for group in groups:
        cells = [*setting_cells(group), _count(group)]
        for metric in kind.reported:
            cells += [spread(group.final_values(metric)), spread(group.selected_values(metric))]
        rows.append(tuple(cells))
    return Summary(f"{kind.name}: {', '.join(kind.reported)}", tuple(headings), tuple(rows))


def setting_cells(group: Group) -> list[str]:
    """The settings that identify a group, as cells."""
    return [str(value) or "-" for value in group.settings.values()]


def _count(group: Group) -> str:
    unfinished = sum(not run.complete for run in group.runs)
    return f"{len(group.runs)}" + (f" ({unfinished} unfinished)" if unfinished else "")


def _steps(group: Group) -> str:
    steps = sorted({run.curve[-1]["step"] for run in group.runs})
    return " to ".join(f"{step:,}" for step in dict.fromkeys([steps[0], steps[-1]]))


def ratio(group: Group, groups: Sequence[Group]) -> str:
    """The group's mean divided by the best of its size."""
    mean = group.mean()
    means = [other.mean() for other in groups if other.size == group.size]
    finite = [value for value in means if value is not None]
    if mean is None or not finite:
        return "-"
    best = (min if group.lower_is_better else max)(finite)
    return f"{mean / best:.3g}" if best else "-"


def equal_seconds(groups: Sequence[Group]) -> float | None:
    """Training time that all runs had; None if their times cannot be compared."""
    runs = [run for group in groups for run in group.runs]
    devices = {_device(piece) for run in runs for piece in run.ran_on}
    if len(groups) < 2 or len(devices) > 1:
        return None
    return float(min(run.curve[-1]["training_seconds"] for run in runs))


def _device(piece: Entry) -> str:
    return json.dumps([piece.get("hardware"), piece.get("together")], sort_keys=True)


def best_groups(runs: Sequence[RunResult]) -> list[str]:
    """One line per size of which there are several groups: which one is best."""
    groups = shorten(group_runs(runs))
    lines = []
    for size in dict.fromkeys(group.size for group in groups):
        same = [group for group in groups if group.size == size]
        if len(same) > 1 and same[0].mean() is not None:
            where = "" if size is None else f" at {SIZE} {size}"
            monitor, value = same[0].runs[0].kind.monitor, spread(same[0].finals())
            lines.append(f"Best {monitor}{where}: {same[0].method} ({value})")
    return lines
