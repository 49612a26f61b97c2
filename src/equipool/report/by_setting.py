"""The effect of one setting: a table, a figure and a section for each setting that varies."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from equipool.report.groups import CHANGED, METHOD, Group, group_runs, shorten, sort_key
from equipool.report.page import Section
from equipool.report.runs import RunResult
from equipool.report.tables import Summary, spread
from equipool.training.artifacts import Picture


@dataclass(frozen=True)
class Line:
    """Groups that differ in one setting only, ordered by its value. `constant` if it is a single
    group beside lines of several: a method that does not have this setting."""

    method: str
    groups: tuple[Group, ...]
    constant: bool


def lines_of(groups: Sequence[Group], setting: str) -> list[Line]:
    """The lines of a setting, constant ones last. If there are lines of several groups, a single
    group is left out unless it is of another method, with the other settings of a line."""
    found: dict[str, list[Group]] = {}
    for group in sorted(groups, key=lambda group: sort_key(group.settings[setting])):
        found.setdefault(_others(group, setting).method, []).append(group)
    several = [same[0] for same in found.values() if len(same) > 1]
    methods = {one.settings.get(METHOD) for one in several}
    compared = {_others(one, setting, METHOD).method for one in several}
    chosen = [
        same
        for same in found.values()
        if len(same) > 1
        or not several
        or (
            same[0].settings.get(METHOD) not in methods
            and _others(same[0], setting, METHOD).method in compared
        )
    ]
    names = [one.method for one in shorten([_others(same[0], setting) for same in chosen])]
    lines = [
        Line(name, tuple(same), bool(several) and len(same) == 1)
        for name, same in zip(names, chosen, strict=True)
    ]
    return sorted(lines, key=lambda line: line.constant)


def _others(group: Group, *left_out: str) -> Group:
    """The group, identified by its other settings."""
    kept = {name: value for name, value in group.settings.items() if name not in left_out}
    return Group(kept, group.runs)


def varied_settings(groups: Sequence[Group], least: int = 2) -> list[str]:
    """The settings of which some method was run with at least so many numbers, or lists of
    numbers."""
    names = [name for name in groups[0].settings if name != METHOD]
    return [
        name
        for name in names
        if any(_count_numbers(line, name) >= least for line in lines_of(groups, name))
    ]


def _count_numbers(line: Line, setting: str) -> int:
    keys = {sort_key(group.settings[setting]) for group in line.groups}
    return sum(not is_name for is_name, _, _ in keys)


def summarize_setting(runs: Sequence[RunResult], setting: str) -> Summary:
    """The score and the seconds per step for each value of a setting, ordered by value.

    The score is the best by the monitored metric, as in the paper's ablations; the task's further
    metrics are those of the same evaluation.
    """
    groups, kind = group_runs(runs, [setting]), runs[0].kind
    metrics = (kind.monitor, *kind.reported)
    headings = [*groups[0].settings, "runs", f"best {kind.monitor}"]
    headings += [f"{metric} there" for metric in kind.reported]
    rows = [
        (
            *(
                "-" if line.constant and name == setting else str(value)
                for name, value in group.settings.items()
            ),
            str(len(group.runs)),
            *(spread(group.selected_values(metric)) for metric in metrics),
            spread([seconds_per_step(run) for run in group.runs]),
        )
        for line in lines_of(groups, setting)
        for group in line.groups
    ]
    return Summary(f"{kind.name}: {setting}", (*headings, "seconds per step"), tuple(rows))


def seconds_per_step(run: RunResult) -> float | None:
    """Mean over the run; None if it has not taken a step."""
    return run.training_seconds / run.steps if run.steps else None


def _score(group: Group) -> list[float | None]:
    return group.selected_values(group.runs[0].kind.monitor)


def _cost(group: Group) -> list[float | None]:
    return [seconds_per_step(run) for run in group.runs]


def compare_values(groups: Sequence[Group], setting: str) -> Summary:
    """The best monitored metric: one row per method, one column per value of the setting."""
    lines = lines_of(groups, setting)
    values = _values(lines, setting)
    rows = []
    for line in lines:
        scores = {str(group.settings[setting]): spread(_score(group)) for group in line.groups}
        constant = next(iter(scores.values()))
        cells = [constant if line.constant else scores.get(value, "-") for value in values]
        rows.append((line.method, *cells))
    headings = ("method", *(f"{setting} {value}" for value in values))
    return Summary(f"best {groups[0].runs[0].kind.monitor}", headings, tuple(rows))


def _values(lines: Sequence[Line], setting: str) -> list[str]:
    found = [
        group.settings[setting] for line in lines if not line.constant for group in line.groups
    ]
    return list(dict.fromkeys(str(value) for value in sorted(found, key=sort_key)))


def draw_setting(groups: Sequence[Group], setting: str) -> bytes:
    """The best monitored metric, and the seconds per step, against the values of a setting: small
    dots are runs, lines their means."""
    from equipool.report import plotting  # needs matplotlib, which is not always installed

    lines = lines_of(groups, setting)
    ticks = _values(lines, setting)
    drawn = plotting.styles([line.method for line in lines])
    kind = groups[0].runs[0].kind
    measured: list[tuple[str, Callable[[Group], list[float | None]]]] = [
        (f"best {kind.monitor}", _score),
        ("seconds per step", _cost),
    ]
    with plotting.panels(1, 2, plotting.WIDTH, 3.7 + 0.12 * min(len(lines), 8)) as (axes, content):
        for ax, (heading, values_of) in zip(axes[0], measured, strict=True):
            for line in lines:
                values = [[v for v in values_of(g) if v is not None] for g in line.groups]
                means = [statistics.fmean(some) if some else float("nan") for some in values]
                style = drawn[line.method]
                if line.constant:
                    ax.axhline(means[0], **style.line(1) | {"marker": "", "linewidth": 1.5})
                    continue
                x = [ticks.index(str(group.settings[setting])) for group in line.groups]
                ax.plot(x, means, **style.line(1))
                for place, some in zip(x, values, strict=True):
                    ax.plot([place] * len(some), some, ".", color=style.color, alpha=0.6)
            ax.set_xticks(range(len(ticks)), ticks)
            if len("".join(ticks)) > 30:
                ax.tick_params("x", rotation=15)
            plotting.label_axes(ax, heading, setting, "")
        if kind.lower_is_better:
            plotting.use_log_scale([axes[0, 0]])
        plotting.add_legend(axes[0, 0], drawn)
    return content.getvalue()


def by_setting(runs: Sequence[RunResult]) -> list[Section]:
    """One section for each setting with several values; with at least three if many settings
    vary."""
    groups = group_runs(runs)
    monitor = runs[0].kind.monitor
    text = (
        f"The best {monitor} of each run: mean and standard deviation over the seeds. In the "
        "figure, dots are runs and lines their means."
    )
    found = []
    many = any(CHANGED in group.settings for group in shorten(groups))
    for setting in varied_settings(groups, least=3 if many else 2) if groups else ():
        picture = Picture(
            f"{monitor} and seconds per step by {setting}", draw_setting(groups, setting)
        )
        table = compare_values(groups, setting)
        found.append(Section(f"By {setting}", [text], [table], [picture]))
    return found
