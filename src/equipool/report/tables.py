"""Tables of runs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence

from equipool.report.artifacts import Table
from equipool.report.groups import SIZE, Group, group_runs, mean_of, shorten
from equipool.report.runs import RunResult


def make_table(title: str, rows: Sequence[dict[str, str]]) -> Table:
    """A table of rows that have their headings as keys."""
    return Table(title, tuple(rows[0]), tuple(tuple(row.values()) for row in rows))


def markdown(table: Table) -> str:
    lines = [table.headings, ["---"] * len(table.headings), *table.texts()]
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


def summaries(runs: Sequence[RunResult]) -> list[Table]:
    """The table of the monitored metric, and that of the task's further metrics; no table if no
    run has been evaluated."""
    evaluated, reported = any(run.curve for run in runs), runs[0].kind.reported
    tables = (summarize, summarize_reported) if reported else (summarize,)
    return [table(runs) for table in tables] if evaluated else []


def summarize(runs: Sequence[RunResult]) -> Table:
    """Results over the seeds: one row per group, sorted by size and then best first. The page's
    section `results` explains the columns. The last one is left out if runs, or pieces of one, ran
    on different hardware or shared it differently."""
    groups = shorten(group_runs(runs))
    seconds = shared_time(groups)
    rows = []
    for group in groups:
        ends = [run.curve[-1]["step"] for run in group.runs]
        row = _first_cells(group) | {
            "last step": " to ".join(f"{step:,}" for step in sorted({min(ends), max(ends)})),
            "mean": spread(group.final_values()),
            "best run": number(group.best_final()),
            "best evaluation": number(group.best(group.selected_values())),
            "/ best": _ratio(group, groups),
        }
        if seconds is not None:
            evaluated = all(run.evaluation_at(seconds) for run in group.runs)
            mean = number(group.mean_at(seconds)) if evaluated else "-"
            row |= {f"mean at {seconds:.3g} s": mean}
        rows.append(row)
    kind = groups[0].runs[0].kind
    return make_table(f"{kind.name}: {kind.monitor}", rows)


def summarize_reported(runs: Sequence[RunResult]) -> Table:
    """Means and standard deviations over the seeds of the task's further metrics: of the last
    evaluations, and of the best ones by the monitored metric."""
    kind, rows = runs[0].kind, []
    for group in shorten(group_runs(runs)):
        row = _first_cells(group)
        for metric in kind.reported:
            row[metric] = spread(group.final_values(metric))
            row[f"{metric} at the best {kind.monitor}"] = spread(group.selected_values(metric))
        rows.append(row)
    return make_table(f"{kind.name}: {', '.join(kind.reported)}", rows)


def _first_cells(group: Group) -> dict[str, str]:
    """The settings that identify a group, and the number of its runs."""
    unfinished = sum(not run.complete for run in group.runs)
    count = f"{len(group.runs)}" + (f" ({unfinished} unfinished)" if unfinished else "")
    return {name: str(value) or "-" for name, value in group.settings.items()} | {"runs": count}


def _ratio(group: Group, groups: Sequence[Group]) -> str:
    """The group's mean divided by the best of its size."""
    mean = group.mean()
    best = group.best([other.mean() for other in groups if other.size == group.size])
    return f"{mean / best:.3g}" if mean is not None and best else "-"


def shared_time(groups: Sequence[Group]) -> float | None:
    """Training time that all runs had; None if their times cannot be compared."""
    runs = [run for group in groups for run in group.runs]
    pieces = (p.get("hardware") for run in runs for p in run.ran_on)
    devices = {json.dumps(piece, sort_keys=True) for piece in pieces}
    if len(groups) < 2 or len(devices) > 1:
        return None
    return float(min(run.curve[-1]["training_seconds"] for run in runs))


def best_groups(runs: Sequence[RunResult]) -> list[str]:
    """One line per size of which there are several groups: which one is best."""
    groups = shorten(group_runs(runs))
    lines = []
    for size in dict.fromkeys(group.size for group in groups):
        same = [group for group in groups if group.size == size]
        if len(same) > 1 and same[0].mean() is not None:
            where = "" if size is None else f" at {SIZE} {size}"
            monitor, value = same[0].runs[0].kind.monitor, spread(same[0].final_values())
            lines.append(f"Best {monitor}{where}: {same[0].method} ({value})")
    return lines
