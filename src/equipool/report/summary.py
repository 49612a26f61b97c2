"""Runs in a table."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from equipool.report.groups import SIZE, Group, group_runs, mean_of
from equipool.report.runs import Entry, RunResult


@dataclass(frozen=True)
class Summary:
    """A table: a row for each group of runs."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def summarize(runs: Sequence[RunResult]) -> Summary:
    """Mean, standard deviation and best over the seeds, for each aggregation and size.

    `mean` and `deviation` are of the last evaluations, `best run` is the last evaluation of the
    best run, `best evaluation` the best of all runs at any step. `/ best` is the mean over the
    smallest (or largest) mean of the same size. The last column is the mean at the number of
    seconds of training that all runs had, `-` where a run had no evaluation by then; it is left out
    where the runs, or the pieces of one, had different hardware or shared it differently.
    """
    groups = group_runs(runs)
    seconds = equal_seconds(groups)
    headings = [
        *groups[0].settings, "runs", "steps", "mean", "deviation", "best run", "best evaluation",
        "/ best",
    ]  # fmt: skip
    if seconds is not None:
        headings.append(f"mean at {seconds:.3g} s")
    rows = [_row(group, groups, seconds) for group in groups]
    monitor = groups[0].runs[0].kind.monitor
    return Summary(f"{groups[0].runs[0].task}: {monitor}", tuple(headings), tuple(rows))


def summarize_reported(runs: Sequence[RunResult]) -> Summary:
    """Means and standard deviations over the seeds of the task's further metrics: of the last
    evaluations, and of those that are best by the monitored metric."""
    groups = group_runs(runs)
    kind = groups[0].runs[0].kind
    headings = [*groups[0].settings, "runs"]
    for metric in kind.reported:
        headings += [metric, f"{metric} at the best {kind.monitor}"]
    rows = tuple(_reported_row(group, kind.reported) for group in groups)
    title = f"{groups[0].runs[0].task}: {', '.join(kind.reported)}"
    return Summary(title, tuple(headings), rows)


def _reported_row(group: Group, metrics: Sequence[str]) -> tuple[str, ...]:
    cells = [*(str(value) for value in group.settings.values()), _count(group)]
    for metric in metrics:
        cells.append(spread(group.final_values(metric)))
        cells.append(spread(group.selected_values(metric)))
    return tuple(cells)


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
    """The table of the monitored metric, and that of further ones where the task has them."""
    found = [summarize(runs)]
    return [*found, summarize_reported(runs)] if _has_reported(runs) else found


def _has_reported(runs: Sequence[RunResult]) -> bool:
    return bool(runs[0].kind.reported)


def _row(group: Group, groups: Sequence[Group], seconds: float | None) -> tuple[str, ...]:
    cells = [
        *(str(value) for value in group.settings.values()),
        _count(group),
        _steps(group),
        number(group.mean()),
        number(group.deviation()) if len(group.runs) > 1 else "-",
        number(group.best_final()),
        number(group.best_evaluation()),
        ratio(group, groups),
    ]
    if seconds is not None:
        cells.append(number(group.mean_at(seconds)) if group.evaluated_by(seconds) else "-")
    return tuple(cells)


def number(value: float | None) -> str:
    """A number of the table, in three digits."""
    return "not finite" if value is None else f"{value:.3g}"


def _count(group: Group) -> str:
    unfinished = sum(not run.complete for run in group.runs)
    return f"{len(group.runs)}" + (f" ({unfinished} unfinished)" if unfinished else "")


def _steps(group: Group) -> str:
    steps = sorted({run.curve[-1]["step"] for run in group.runs})
    return " to ".join(f"{step:,}" for step in dict.fromkeys([steps[0], steps[-1]]))


def ratio(group: Group, groups: Sequence[Group]) -> str:
    """The group's mean over the best of its size."""
    mean = group.mean()
    means = [other.mean() for other in groups if other.size == group.size]
    finite = [value for value in means if value is not None]
    if mean is None or not finite:
        return "-"
    best = (min if group.lower_is_better else max)(finite)
    return f"{mean / best:.3g}" if best else "-"


def equal_seconds(groups: Sequence[Group]) -> float | None:
    """Seconds of training that all runs had; None where they cannot be compared."""
    runs = [run for group in groups for run in group.runs]
    places = {_place(piece) for run in runs for piece in run.ran_on}
    if len(groups) < 2 or len(places) > 1:
        return None
    return float(min(run.curve[-1]["training_seconds"] for run in runs))


def _place(piece: Entry) -> str:
    return json.dumps([piece.get("hardware"), piece.get("together")], sort_keys=True)


def markdown(summary: Summary) -> str:
    """The table in Markdown."""
    lines = [summary.headings, tuple("---" for _ in summary.headings), *summary.rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def order_in_words(runs: Sequence[RunResult]) -> str:
    """From best to worst, a line for each size of which there is more than one group."""
    groups = group_runs(runs)
    monitor = groups[0].runs[0].kind.monitor
    lines = []
    for size in dict.fromkeys(group.size for group in groups):
        same = [group for group in groups if group.size == size]
        if len(same) < 2:
            continue
        told = ", ".join(f"{group.method} {number(group.mean())}" for group in same)
        where = "" if size is None else f" at {SIZE} {size}"
        lines.append(f"Order by {monitor}{where}, best first: {told}")
    return "\n".join(lines)
