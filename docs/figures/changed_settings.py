"""Groups of runs in which one setting or another was changed, named after the change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from page_tables import group_by

from equipool.report import RunResult
from equipool.report.groups import Group, describe, difference, usual_group


@dataclass(frozen=True)
class Changed:
    """A group, and the usual group of its method."""

    group: Group
    usual: Group

    @property
    def settings(self) -> dict[str, Any]:
        """The changed settings, with their values."""
        return difference(self.group, self.usual)

    def name(self, *without: str) -> str:
        """The aggregation and the changed settings, except those with a column of their own."""
        changes = {name: value for name, value in self.settings.items() if name not in without}
        return ", ".join(filter(None, (_aggregation(self.group), describe(changes))))


def changed_groups(runs: Sequence[RunResult]) -> list[Changed]:
    """The groups of these runs by method, the usual one of each method first."""
    every = group_by(runs, ("aggregation",))
    found = []
    for _, same in groupby(every, key=_aggregation):
        groups = list(same)
        usual = usual_group(groups, every)
        found += [Changed(usual, usual)]
        found += [Changed(group, usual) for group in groups if group is not usual]
    return found


def _aggregation(group: Group) -> str:
    name: str = group.settings["aggregation"]
    return name
