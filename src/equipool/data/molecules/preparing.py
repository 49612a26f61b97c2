"""From a source to a cache."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from equipool.data.molecules.cache import write_cache, write_problems
from equipool.data.molecules.progress import say, shown
from equipool.data.molecules.smiles import Problem
from equipool.data.molecules.sources import MoleculeSource

NAMED = 10  # problems whose rows are said


def prepare(source: MoleculeSource, path: Path) -> None:
    """Read the source's molecules and write them to `path`, where the file is the old one or the
    new one at every moment."""
    contents = source.examine()
    with _workshop(path) as workshop:
        unfinished = workshop / path.name
        pieces = shown(source.pieces(contents), path.stem, contents.num_rows)
        problems = write_cache(unfinished, workshop, source, contents, pieces)
        listed = path.with_suffix(".problems.csv")
        write_problems(listed, problems)
        os.replace(unfinished, path)
    if problems:
        say(summary(path.stem, problems, listed))


def summary(name: str, problems: tuple[Problem, ...], listed: Path) -> str:
    """How many molecules RDKit did not read, what became of them, and where the list is.

    Example:
        >>> print(summary("mine", (Problem(7, "C1CC", "unclosed ring", False),), Path("mine.csv")))
        mine: RDKit does not read 1 molecule: 1 left out (row 7). Rows, SMILES and reasons: mine.csv
    """
    parts = []
    for kept, fate in ((True, "kept without checking valences"), (False, "left out")):
        rows = [problem.row for problem in problems if problem.kept == kept]
        if rows:
            word = "row" if len(rows) == 1 else "rows"
            more = ", ..." if len(rows) > NAMED else ""
            parts.append(f"{len(rows):,} {fate} ({word} {', '.join(map(str, rows[:NAMED]))}{more})")
    molecules = "1 molecule" if len(problems) == 1 else f"{len(problems):,} molecules"
    return (
        f"{name}: RDKit does not read {molecules}: {'; '.join(parts)}. "
        f"Rows, SMILES and reasons: {listed}"
    )


@contextmanager
def _workshop(path: Path) -> Iterator[Path]:
    """A folder beside the file for what is not finished. One that a killed process left is used
    again, and goes away at the end."""
    workshop = path.with_name(f".{path.stem}.partial")
    workshop.mkdir(exist_ok=True)
    try:
        yield workshop
    finally:
        shutil.rmtree(workshop, ignore_errors=True)
