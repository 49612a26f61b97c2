"""Puts tables that are made from records into the pages of the documentation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from equipool.report import RunResult, Table, markdown, read_runs
from equipool.report.groups import Group, group_runs

BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

Tables = Mapping[str, Table | str]


def read_folder(folder: Path) -> list[RunResult]:
    """The runs of a folder of records; none if there is no such folder."""
    return read_runs([folder]) if folder.is_dir() else []


def group_by(runs: Sequence[RunResult], fields: Sequence[str]) -> list[Group]:
    """Groups by these fields of the task; runs with the same values of them that differ in another
    setting than the seed are separate groups, named after that setting."""
    found: dict[str, list[RunResult]] = {}
    for run in runs:
        found.setdefault(str([run.config["fields"][name] for name in fields]), []).append(run)
    return [group for same in found.values() for group in group_runs(same)]


def span(values: Sequence[float], form: str = ",") -> str:
    """The smallest and the largest value, or one of them if both look the same.

    Example:
        >>> span([2000, 2000]), span([2000, 1500]), span([0.251, 0.249], ".2f")
        ('2,000', '1,500 to 2,000', '0.25')
    """
    return " to ".join(dict.fromkeys(format(value, form) for value in (min(values), max(values))))


def ran_on(runs: Sequence[RunResult]) -> str:
    """A sentence about hardware and versions."""
    pieces = [piece for run in runs for piece in run.ran_on]
    hardware = {str(p["hardware"].get("gpu", p["hardware"]["cpu"])) for p in pieces}
    versions = {str(p["versions"]["torch"]) for p in pieces}
    return (
        f"{len(runs)} runs on {' and '.join(sorted(hardware))}, "
        f"torch {' and '.join(sorted(versions))}."
    )


def refresh_page(file: Path, tables: Tables) -> None:
    """Print tables and sentences, and put them into the page, if it exists."""
    for name in tables:
        print(f"{name}\n\n{_text(name, tables)}\n")
    if file.exists():
        page = file.read_text(encoding="utf-8")
        file.write_text(fill_tables(page, tables), encoding="utf-8")


def fill_tables(page: str, tables: Tables) -> str:
    """The page with new text between `<!-- generated: NAME -->` and `<!-- end -->`."""
    return BLOCK.sub(lambda match: f"{match[1]}\n{_text(match[2], tables)}\n\n{match[3]}", page)


def _text(name: str, tables: Tables) -> str:
    if name not in tables:
        raise ValueError(f"the page has a block {name!r}, expected one of {sorted(tables)}")
    found = tables[name]
    return found if isinstance(found, str) else markdown(found)
