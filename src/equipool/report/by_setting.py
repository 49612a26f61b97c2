"""The effect of one setting: a table and a figure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from equipool.report.artifacts import Table
from equipool.report.groups import METHOD, Group, group_runs, shorten, sort_key
from equipool.report.runs import RunResult
from equipool.report.tables import make_table, spread

COST = "seconds per step"


@dataclass(frozen=True)
class Line:
    """Groups that differ in one setting only, ordered by its value. `constant` if it is a single
    group beside lines of several: a method that does not have this setting."""

    method: str
    groups: tuple[Group, ...]
    constant: bool


def lines_of(groups: Sequence[Group], setting: str) -> list[Line]:
    """The lines of a setting, constant ones last. A single group of a method that has a line of
    several is left out: it differs from the line in another setting."""
    found: dict[str, list[Group]] = {}
    for group in sorted(groups, key=lambda group: sort_key(group.settings[setting])):
        found.setdefault(_others(group, setting).method, []).append(group)
    every = [(same[0].settings.get(METHOD), same) for same in found.values()]
    varied = {method for method, same in every if len(same) > 1}
    chosen = [same for method, same in every if len(same) > 1 or method not in varied]
    chosen.sort(key=lambda same: len(same) == 1)
    names = [one.method for one in shorten([_others(same[0], setting) for same in chosen])]
    return [
        Line(name, tuple(same), bool(varied) and len(same) == 1)
        for name, same in zip(names, chosen, strict=True)
    ]


def _others(group: Group, setting: str) -> Group:
    """The group, identified by its other settings."""
    return Group({k: v for k, v in group.settings.items() if k != setting}, group.runs)


def varied_settings(groups: Sequence[Group], least: int = 2) -> list[str]:
    """The settings of which some method was run with at least so many numbers, or lists of
    numbers."""

    def most_numbers(setting: str) -> int:
        lines = ([sort_key(g.settings[setting]) for g in line.groups]
                 for line in lines_of(groups, setting))  # fmt: skip
        return max(len({key for key in keys if not key[0]}) for keys in lines)

    return [name for name in groups[0].settings if name != METHOD and most_numbers(name) >= least]


def summarize_setting(runs: Sequence[RunResult], setting: str) -> Table:
    """The best monitored metric, as in the paper's ablations, the task's further metrics at the
    same evaluation, and the seconds per step, for each value of a setting, ordered by value."""
    kind, rows = runs[0].kind, []
    for line in lines_of(group_runs(runs, [setting]), setting):
        for group in line.groups:
            row = {name: str(value) for name, value in group.settings.items()}
            row |= {setting: "-"} if line.constant else {}
            row |= {"runs": str(len(group.runs))}
            row[f"best {kind.monitor}"] = spread(group.selected_values())
            row |= {f"{m} there": spread(group.selected_values(m)) for m in kind.reported}
            rows.append(row | {COST: spread(_cost(group))})
    return make_table(f"{kind.name}: {setting}", rows)


def _cost(group: Group) -> list[float | None]:
    """Mean seconds per step of each run; None if it has not taken a step."""
    return [run.training_seconds / run.steps if run.steps else None for run in group.runs]


def draw_setting(groups: Sequence[Group], setting: str) -> bytes:
    """The best monitored metric, and the seconds per step, against the values of a setting: small
    dots are runs, lines their means."""
    from equipool.report import figures  # needs matplotlib, which is not always installed

    lines, kind = lines_of(groups, setting), groups[0].runs[0].kind
    found = (g.settings[setting] for line in lines if not line.constant for g in line.groups)
    ticks = list(dict.fromkeys(str(value) for value in sorted(found, key=sort_key)))
    drawn = figures.styles([line.method for line in lines])
    height = 3.7 + 0.12 * min(len(lines), 8)
    with figures.panels(1, 2, figures.WIDTH, height) as (axes, content):
        for ax, heading in zip(axes[0], (f"best {kind.monitor}", COST), strict=True):
            for line in lines:
                scores = [_cost(g) if heading == COST else g.selected_values() for g in line.groups]
                values = [[v for v in some if v is not None] for some in scores]
                means = [statistics.fmean(some) if some else float("nan") for some in values]
                style = drawn[line.method]
                if line.constant:
                    ax.axhline(means[0], **style.line(1) | {"marker": "", "linewidth": 1.5})
                    continue
                x = [ticks.index(str(group.settings[setting])) for group in line.groups]
                ax.plot(x, means, **style.line(1))
                for position, some in zip(x, values, strict=True):
                    ax.plot([position] * len(some), some, ".", color=style.color, alpha=0.6)
            ax.set_xticks(range(len(ticks)), ticks)
            if len("".join(ticks)) > 30:
                ax.tick_params("x", rotation=15)
            figures.label_axes(ax, heading, setting)
        if kind.lower_is_better:
            figures.use_log_scale([axes[0, 0]])
        figures.add_legend(axes[0, 0], drawn)
    return content.getvalue()
