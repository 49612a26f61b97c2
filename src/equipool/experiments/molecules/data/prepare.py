"""Preparing a data set: from its source to its cache."""

from __future__ import annotations

import csv
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from equipool.bars import columns
from equipool.experiments.molecules.data.cache import MoleculeCache, write_cache
from equipool.experiments.molecules.data.featurize import Chunk, Problem
from equipool.experiments.molecules.data.sources import Contents, MoleculeSource
from equipool.experiments.molecules.data.table import listed

MAX_SHOWN = 10  # rows and labels named in a message


def prepare(
    source: MoleculeSource, contents: Contents, path: Path, *, private: bool = False
) -> None:
    """Read the source's molecules and write them to `path`.

    The file appears, or is replaced, only when it is complete.

    Args:
        source: where the molecules come from.
        contents: what `source.examine()` found.
        path: the file to write.
        private: whether the file gets the permissions of the source.
    """
    with _scratch_folder(path) as scratch:
        chunks = with_progress(source.chunks(contents), path.stem, contents.num_rows)
        problems = write_cache(scratch / path.name, scratch, source, contents, chunks)
        table = path.with_suffix(".problems.csv")
        _write_problems(scratch / table.name, problems)
        for target in (table, path):
            if private:
                shutil.copymode(source.files[0], scratch / target.name)
            os.replace(scratch / target.name, target)
        if not problems:
            table.unlink()
    print_status(describe(path.stem, contents, MoleculeCache(path).part_sizes()))
    if problems:
        print_status(describe_problems(path.stem, problems, table))
    print_status(f"{path.stem}: the prepared molecules are in {path}")


def describe(name: str, contents: Contents, sizes: dict[str, int]) -> str:
    """A summary of what was read.

    Example:
        >>> contents = Contents(10, ("A", "B"), "regression", "column 'A' has '2' in row 7")
        >>> print(describe("mine", contents, {"train": 8, "valid": 1, "test": 1}))
        mine: regression (column 'A' has '2' in row 7), 2 labels: 'A', 'B'; 8 train, 1 valid, 1 test
    """
    reason = f" ({contents.reason})" if contents.reason else ""
    number = len(contents.label_names)
    labels = "1 label" if number == 1 else f"{number:,} labels"
    parts = ", ".join(f"{size:,} {part}" for part, size in sizes.items())
    names = listed(contents.label_names, MAX_SHOWN)
    return f"{name}: {contents.kind}{reason}, {labels}: {names}; {parts}"


def describe_problems(name: str, problems: tuple[Problem, ...], table: Path) -> str:
    """How many molecules RDKit rejected, what became of them, and where they are listed.

    Example:
        >>> problems = (Problem(7, "C1CC", "unclosed ring", False),)
        >>> print(describe_problems("mine", problems, Path("mine.csv")))
        mine: RDKit rejects 1 molecule: 1 left out (row 7). Rows, SMILES and reasons: mine.csv
    """
    counts = []
    for kept, outcome in ((True, "kept as written"), (False, "left out")):
        rows = [problem.row for problem in problems if problem.kept == kept]
        if rows:
            word = "row" if len(rows) == 1 else "rows"
            shown = ", ".join(map(str, rows[:MAX_SHOWN])) + ", ..." * (len(rows) > MAX_SHOWN)
            counts.append(f"{len(rows):,} {outcome} ({word} {shown})")
    molecules = "1 molecule" if len(problems) == 1 else f"{len(problems):,} molecules"
    return (
        f"{name}: RDKit rejects {molecules}: {'; '.join(counts)}. Rows, SMILES and reasons: {table}"
    )


def print_status(text: str) -> None:
    """Print to standard error: standard output may be a table."""
    print(text, file=sys.stderr, flush=True)


def with_progress(chunks: Iterable[Chunk], title: str, num_rows: int) -> Iterator[Chunk]:
    """The chunks, with a progress bar if rich is installed."""
    if find_spec("rich") is None:
        print_status(f"{title}: {num_rows:,} rows")
        yield from chunks
        return
    from rich import progress
    from rich.console import Console

    with progress.Progress(*columns(), console=Console(stderr=True), refresh_per_second=4) as bars:
        bar = bars.add_task(title, total=num_rows)
        for chunk in chunks:
            yield chunk
            bars.update(bar, advance=chunk.num_rows)


def _write_problems(path: Path, problems: tuple[Problem, ...]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["row", "smiles", "reason", "kept"])
        writer.writeheader()
        writer.writerows(asdict(problem) for problem in problems)


@contextmanager
def _scratch_folder(path: Path) -> Iterator[Path]:
    """A folder beside the file for unfinished files, removed at the end.

    One left by a killed process is used again. Only the user can read it: the table may be private.
    """
    scratch = path.with_name(f".{path.stem}.partial")
    scratch.mkdir(mode=0o700, exist_ok=True)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
