"""From a source to a cache."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from equipool.experiments.molecules.data.cache import MoleculeCache, write_cache, write_problems
from equipool.experiments.molecules.data.progress import say, shown
from equipool.experiments.molecules.data.smiles import Problem
from equipool.experiments.molecules.data.sources import Contents, MoleculeSource
from equipool.experiments.molecules.data.table import listed

NAMED = 10  # problems whose rows are said, and labels


def prepare(source: MoleculeSource, path: Path) -> None:
    """Read the source's molecules and write them to `path`, where the file is the old one or the
    new one at every moment."""
    contents = source.examine()
    with _workshop(path) as workshop:
        unfinished = workshop / path.name
        pieces = shown(source.pieces(contents), path.stem, contents.num_rows)
        problems = write_cache(unfinished, workshop, source, contents, pieces)
        table = path.with_suffix(".problems.csv")
        write_problems(table, problems)
        os.replace(unfinished, path)
    say(description(path.stem, contents, MoleculeCache(path).part_sizes()))
    if problems:
        say(summary(path.stem, problems, table))


def description(name: str, contents: Contents, sizes: dict[str, int]) -> str:
    """What the molecules were taken for.

    Example:
        >>> contents = Contents(10, ("A", "B"), "regression", "column 'A' has '2' in row 7")
        >>> print(description("mine", contents, {"train": 8, "valid": 1, "test": 1}))
        mine: regression (column 'A' has '2' in row 7), 2 labels: 'A', 'B'; 8 train, 1 valid, 1 test
    """
    why = f" ({contents.why})" if contents.why else ""
    number = len(contents.label_names)
    labels = "1 label" if number == 1 else f"{number:,} labels"
    parts = ", ".join(f"{size:,} {part}" for part, size in sizes.items())
    names = listed(contents.label_names, NAMED)
    return f"{name}: {contents.kind}{why}, {labels}: {names}; {parts}"


def summary(name: str, problems: tuple[Problem, ...], table: Path) -> str:
    """How many molecules RDKit did not read, what became of them, and where the list is.

    Example:
        >>> print(summary("mine", (Problem(7, "C1CC", "unclosed ring", False),), Path("mine.csv")))
        mine: RDKit does not read 1 molecule: 1 left out (row 7). Rows, SMILES and reasons: mine.csv
    """
    parts = []
    for kept, fate in ((True, "kept as written"), (False, "left out")):
        rows = [problem.row for problem in problems if problem.kept == kept]
        if rows:
            word = "row" if len(rows) == 1 else "rows"
            more = ", ..." if len(rows) > NAMED else ""
            parts.append(f"{len(rows):,} {fate} ({word} {', '.join(map(str, rows[:NAMED]))}{more})")
    molecules = "1 molecule" if len(problems) == 1 else f"{len(problems):,} molecules"
    return (
        f"{name}: RDKit does not read {molecules}: {'; '.join(parts)}. "
        f"Rows, SMILES and reasons: {table}"
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
