"""One setting and what came of its values."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
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
    groups = sorted(group_runs(runs), key=lambda group: rank(group.settings.get(setting)))
    kind = groups[0].runs[0].kind
    headings = [*groups[0].settings, "runs", f"best {kind.monitor}"]
    headings += [f"{metric} there" for metric in kind.reported]
    rows = [_row(group, (kind.monitor, *kind.reported)) for group in groups]
    title = f"{groups[0].runs[0].task}: {setting}"
    return Summary(title, (*headings, "seconds a step"), tuple(rows))


def _row(group: Group, metrics: Sequence[str]) -> tuple[str, ...]:
    return (
        *(str(value) for value in group.settings.values()),
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
    if isinstance(value, int | float):
        return False, float(value), ""
    if isinstance(value, list | tuple) and all(isinstance(part, int | float) for part in value):
        return False, float(sum(value)), ""
    return True, 0.0, str(value)


def varied_settings(groups: Sequence[Group]) -> list[str]:
    """The settings, beside the method and its size, of which there are several values."""
    names = [name for name in groups[0].settings if name not in ALWAYS]
    return [name for name in names if len({str(g.settings[name]) for g in groups}) > 1]


def lines_of(groups: Sequence[Group], setting: str) -> dict[str, list[Group]]:
    """The groups that differ in nothing but a setting, in the order of its values, by what they
    are otherwise."""
    found: dict[str, list[Group]] = {}
    for group in sorted(groups, key=lambda group: rank(group.settings[setting])):
        others = {name: value for name, value in group.settings.items() if name != setting}
        found.setdefault(Group(others, group.runs).method, []).append(group)
    return found


def draw_varied(groups: Sequence[Group], setting: str) -> bytes:
    """The best monitored metric, and the seconds a step, against the values of a setting: dots are
    runs, lines their means. A method that has one value alone is a line across."""
    from equipool.report.pictures import plot_labels, plot_panels, styles

    lines = lines_of(groups, setting)
    across = {method for method, same in lines.items() if len(same) == 1 and len(lines) > 1}
    placed = [group for method, same in lines.items() if method not in across for group in same]
    values = sorted((group.settings[setting] for group in placed), key=rank)
    ticks = list(dict.fromkeys(str(value) for value in values))
    drawn = styles(list(lines))
    monitor = groups[0].runs[0].kind.monitor
    with plot_panels(1, 2, 10, 3.6) as (axes, content):
        for ax, heading, measured in (
            (axes[0, 0], f"best {monitor}", lambda g: g.selected_values(monitor)),
            (axes[0, 1], "seconds a step", lambda g: [seconds_a_step(run) for run in g.runs]),
        ):
            for method, same in lines.items():
                color = drawn[method].color
                found = [[v for v in measured(group) if v is not None] for group in same]
                means = [statistics.fmean(v) if v else float("nan") for v in found]
                if method in across:
                    ax.axhline(means[0], color=color, linestyle="--", label=method)
                    continue
                at = [ticks.index(str(group.settings[setting])) for group in same]
                ax.plot(at, means, color=color, linewidth=2.2, label=method)
                for place, some in zip(at, found, strict=True):
                    ax.plot([place] * len(some), some, "o", color=color, alpha=0.6)
            ax.set_xticks(range(len(ticks)), ticks)
            plot_labels(ax, heading, setting, "")
        axes[0, 1].legend(fontsize=10, frameon=False)
    return content.getvalue()
