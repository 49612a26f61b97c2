"""From folders of records to the tables of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from equipool.report.blocks import fill_blocks
from equipool.report.groups import Group, group_runs
from equipool.report.runs import RunResult, read_runs
from equipool.report.summary import Summary, markdown


def recorded(folder: Path) -> list[RunResult]:
    """The runs of a folder of records; none where there is no such folder."""
    return read_runs([folder]) if folder.is_dir() else []


def group_by(runs: Sequence[RunResult], fields: Sequence[str]) -> list[Group]:
    """Groups that are told apart by these fields of the task; runs that have the same values of
    them, and differ in another setting than the seed, are groups of their own which tell it.

    `group_runs` goes by aggregation and size, here it is any fields.
    """
    found: dict[str, list[RunResult]] = {}
    for run in runs:
        found.setdefault(str([run.config["fields"][name] for name in fields]), []).append(run)
    return [group for same in found.values() for group in group_runs(same)]


def span(values: Sequence[float], form: str = ",") -> str:
    """The smallest and the largest, in a format, once where they are the same in it.

    Example:
        >>> span([2000, 2000]), span([2000, 1500]), span([0.251, 0.249], ".2f")
        ('2,000', '1,500 to 2,000', '0.25')
    """
    return " to ".join(dict.fromkeys(format(value, form) for value in (min(values), max(values))))


def ran_on(runs: Sequence[RunResult]) -> str:
    """On what the runs ran, and with what, in words."""
    pieces = [piece for run in runs for piece in run.ran_on]
    hardware = {str(p["hardware"].get("gpu", p["hardware"]["cpu"])) for p in pieces}
    versions = {str(p["versions"]["torch"]) for p in pieces}
    return f"{len(runs)} runs on {_listed(hardware)}, torch {_listed(versions)}."


def _listed(names: set[str]) -> str:
    return " and ".join(sorted(names))


def refresh_page(file: Path, tables: Mapping[str, Summary | str]) -> None:
    """Print tables and sentences, and put them between `<!-- generated: NAME -->` and
    `<!-- end -->` where the page is there."""
    for name in tables:
        print(f"{name}\n\n{_text(name, tables)}\n")
    if file.exists():
        page = file.read_text(encoding="utf-8")
        file.write_text(fill_tables(page, tables), encoding="utf-8")


def fill_tables(page: str, tables: Mapping[str, Summary | str]) -> str:
    """The page with these tables and sentences in their places."""
    return fill_blocks(page, lambda name: _text(name, tables))


def _text(name: str, tables: Mapping[str, Summary | str]) -> str:
    if name not in tables:
        raise ValueError(f"the page has a place for {name!r}, expected one of {sorted(tables)}")
    found = tables[name]
    return found if isinstance(found, str) else markdown(found)
