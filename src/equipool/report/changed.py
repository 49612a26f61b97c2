"""Groups of runs in which one thing or another was changed, named after the change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from equipool.report.groups import Group, settings_of
from equipool.report.recorded import group_by
from equipool.report.runs import RunResult


@dataclass(frozen=True)
class Changed:
    """A group, and in which settings it is not like its method's usual one: the one from which all
    groups of the method together differ the least; where that leaves it open, all runs."""

    group: Group
    usual: Group

    @property
    def settings(self) -> dict[str, Any]:
        """Those that were changed, with their values."""
        return difference(self.group, self.usual)

    @property
    def method(self) -> str:
        """The aggregation, and what was changed, in words."""
        return self.told()

    def told(self, *without: str) -> str:
        """As `method`, but for settings that are told elsewhere."""
        changes = (
            f"{name.replace('_', ' ').replace('.', ' ')} {said(value)}"
            for name, value in self.settings.items()
            if name not in without
        )
        return ", ".join((_aggregation(self.group), *changes))


def difference(group: Group, other: Group) -> dict[str, Any]:
    """The settings that the other has not, or has another value of."""
    missing = object()
    return {k: v for k, v in group.settings.items() if other.settings.get(k, missing) != v}


def said(value: Any) -> str:
    """As a reader would say it.

    Example:
        >>> said(True), said(None), said(0.5)
        ('on', 'none', '0.5')
    """
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)


def changed_groups(runs: Sequence[RunResult]) -> list[Changed]:
    """The groups of these runs, by method; the usual one of each method first."""
    found = []
    for _, same in groupby(group_by(runs, ("aggregation",)), key=_aggregation):
        groups = list(same)
        usual = min(groups, key=lambda one: (_distance(groups, one), _distance_of_runs(runs, one)))
        groups.sort(key=lambda group: group is not usual)
        found += [Changed(group, usual) for group in groups]
    return found


def _distance(groups: Sequence[Group], usual: Group) -> int:
    return sum(len(difference(group, usual)) for group in groups)


def _distance_of_runs(runs: Sequence[RunResult], usual: Group) -> int:
    own = settings_of(usual.runs[0])
    return sum(own.get(k) != v for run in runs for k, v in settings_of(run).items())


def _aggregation(group: Group) -> str:
    name: str = group.settings["aggregation"]
    return name
