"""One setting and what came of its values."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from equipool.report.groups import ALWAYS, Group, group_runs
from equipool.report.runs import RunResult
from equipool.report.summary import Summary, spread


def summarize_varied(runs: Sequence[RunResult], setting: str) -> Summary:
    """The score and the seconds a step for each value of a setting, in the order of the values.

    The score is the best by the monitored metric, as the paper's ablations report it, and the
    task's further metrics are those at the same step. A step's seconds are those of the training
    over its steps.
    """
    groups, kind = group_runs(runs, [setting]), runs[0].kind
    headings = [*groups[0].settings, "runs", f"best {kind.monitor}"]
    headings += [f"{metric} there" for metric in kind.reported]
    lines = lines_of(groups, setting)
    metrics = (kind.monitor, *kind.reported)
    rows = [
        _row(group, setting if line.across else None, metrics)
        for line in lines
        for group in line.groups
    ]
    return Summary(f"{kind.name}: {setting}", (*headings, "seconds a step"), tuple(rows))


def _row(group: Group, meaningless: str | None, metrics: Sequence[str]) -> tuple[str, ...]:
    return (
        *("-" if name == meaningless else str(value) for name, value in group.settings.items()),
        str(len(group.runs)),
        *(spread(group.selected_values(metric)) for metric in metrics),
        spread([seconds_a_step(run) for run in group.runs]),
    )


def seconds_a_step(run: RunResult) -> float | None:
    """Mean over the run; None where it has not begun."""
    return run.training_seconds / run.steps if run.steps else None


def rank(value: Any) -> tuple[bool, float, str]:
    """By which values of a setting are ordered: numbers by size, lists of them by their sum, and
    behind them all the rest by name.

    Example:
        >>> sorted(["none", [60, 30], 10, [5]], key=rank)
        [[5], 10, [60, 30], 'none']
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return False, float(value), ""
    if isinstance(value, list | tuple) and all(isinstance(part, int | float) for part in value):
        return False, float(sum(value)), ""
    return True, 0.0, str(value)


def varied_settings(groups: Sequence[Group]) -> list[str]:
    """The settings, beside the method and its size, of which some method has several numbers, or
    several lists of numbers. Where each has one of its own, nothing was varied."""
    names = [name for name in groups[0].settings if name not in ALWAYS]
    return [name for name in names if any(_vary(line, name) for line in lines_of(groups, name))]


def _vary(line: Line, setting: str) -> bool:
    ranks = {rank(group.settings[setting]) for group in line.groups}
    return sum(not named for named, _, _ in ranks) > 1


@dataclass(frozen=True)
class Line:
    """Groups that differ in nothing but a setting, in the order of its values. `across` where
    there is one alone beside lines that have several: the setting means nothing to it."""

    method: str
    groups: tuple[Group, ...]
    across: bool


def lines_of(groups: Sequence[Group], setting: str) -> list[Line]:
    """The lines of these groups; those of one group alone are last."""
    found: dict[str, list[Group]] = {}
    for group in sorted(groups, key=lambda group: rank(group.settings[setting])):
        others = {name: value for name, value in group.settings.items() if name != setting}
        found.setdefault(Group(others, group.runs).method, []).append(group)
    several = any(len(same) > 1 for same in found.values())
    lines = [Line(name, tuple(same), several and len(same) == 1) for name, same in found.items()]
    return sorted(lines, key=lambda line: line.across)


def draw_varied(groups: Sequence[Group], setting: str) -> bytes:
    """The best monitored metric, and the seconds a step, against the values of a setting: dots are
    runs, lines their means."""
    from equipool.report.pictures import label_axes, panels, styles

    lines = lines_of(groups, setting)
    values = [group.settings[setting] for line in lines if not line.across for group in line.groups]
    ticks = list(dict.fromkeys(str(value) for value in sorted(values, key=rank)))
    drawn = styles([line.method for line in lines])
    monitor = groups[0].runs[0].kind.monitor
    with panels(1, 2, 10, 3.6) as (axes, content):
        for ax, heading, measured in (
            (axes[0, 0], f"best {monitor}", lambda group: group.selected_values(monitor)),
            (axes[0, 1], "seconds a step", lambda group: map(seconds_a_step, group.runs)),
        ):
            for line in lines:
                found = [[v for v in measured(group) if v is not None] for group in line.groups]
                places = [ticks.index(str(group.settings[setting])) for group in line.groups
                          if not line.across]  # fmt: skip
                _draw(ax, line.method, drawn[line.method].color, places, found)
            ax.set_xticks(range(len(ticks)), ticks)
            label_axes(ax, heading, setting, "")
        axes[0, 1].legend(fontsize=10, frameon=False)
    return content.getvalue()


def _draw(
    ax: Any, method: str, color: str, places: Sequence[int], values: Sequence[Sequence[float]]
) -> None:
    """A line through the means of the values at these places, across where there are none."""
    means = [statistics.fmean(some) if some else float("nan") for some in values]
    if not places:
        ax.axhline(means[0], color=color, linestyle="--", label=method)
        return
    ax.plot(places, means, color=color, linewidth=2.2, label=method)
    for place, some in zip(places, values, strict=True):
        ax.plot([place] * len(some), some, "o", color=color, alpha=0.6)
