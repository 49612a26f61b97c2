"""Loading a data set: from its cache, which is prepared first if necessary."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from equipool.bars import columns
from equipool.experiments.data import MissingDataError, cache_folder, data_folder
from equipool.experiments.molecules.data.cache import (
    MoleculeCache,
    UnusableFileError,
    write_cache,
)
from equipool.experiments.molecules.data.datasets import dataset_named
from equipool.experiments.molecules.data.featurize import Chunk, Problem
from equipool.experiments.molecules.data.molecule_set import MoleculeSet
from equipool.experiments.molecules.data.sources import Contents, MoleculeSource
from equipool.experiments.molecules.data.table import listed

FOLDER = "molecules"  # of caches, in a data folder
MAX_SHOWN = 10  # rows and labels named in a message


def load_molecules(which: str | MoleculeSource, data_dir: str | Path | None = None) -> MoleculeSet:
    """The molecules of a data set.

    The first call prepares them on all cores and writes one cache file; later calls read that file,
    even if the source is gone. The cache is rebuilt if the source has changed or the file is
    damaged.

    The cache of a public data set is written to `molecules` in the data folder. The cache of a
    table of your own holds a copy of its content, so it is never written to the shared data folder
    of `EQUIPOOL_DATA`: it goes to `molecules` in the folder you pass as `data_dir` (`--data-dir`),
    or else in your own cache folder (`~/.cache/equipool`), with the permissions of the table. A
    folder that cannot be written is skipped in favour of your own cache folder. The path is printed
    when the file is written.

    Args:
        which: `"molhiv"`, `"molpcba"`, `"toxcast"`, `"tox21"`, `"qm9"`, or a source such as
            `CsvSource(path)`.
        data_dir: the data folder (default: see `data_folder`).
    """
    return molecule_cache(which, data_dir).molecules()


def load_problems(
    which: str | MoleculeSource, data_dir: str | Path | None = None
) -> tuple[Problem, ...]:
    """The molecules of a data set that RDKit rejects: rows, reasons, and whether they are kept.

    Prints a note if they were found with other versions of RDKit or ogb than those installed.
    """
    cache = molecule_cache(which, data_dir)
    problems, differences = cache.problems(), cache.version_differences()
    if problems and differences:
        print_status(f"{cache.path} was prepared with {differences}; its problems may differ now")
    return problems


def molecule_cache(
    which: str | MoleculeSource, data_dir: str | Path | None = None
) -> MoleculeCache:
    """The cache of a data set, prepared if necessary."""
    request = _Request(which, data_folder(data_dir))
    found = request.find_cache()
    if found is not None:
        return found
    source = request.source()
    contents = source.examine()  # a broken source leaves no files behind
    path = request.writable_folder() / f"{request.name}.safetensors"
    with _locked(path.with_suffix(".lock")):
        found = request.find_cache()  # another process may have prepared it meanwhile
        if found is not None:
            return found
        for reason in request.rejected:
            print_status(f"{reason}: preparing it again")
        prepare(source, contents, path, private=request.private)
        return MoleculeCache(path)


def prepare(
    source: MoleculeSource, contents: Contents, path: Path, *, private: bool = False
) -> None:
    """Read the source's molecules and write them to `path`.

    The file appears, or is replaced, only when it is complete.

    Args:
        source: where the molecules come from.
        contents: what `source.examine()` found.
        path: the file to write.
        private: whether the source is a user's own; the file then gets its permissions.
    """
    name = source.location.name if private else path.stem
    with _scratch_folder(path) as scratch:
        chunks = with_progress(source.chunks(contents), name, contents.num_rows)
        problems = write_cache(scratch / path.name, scratch, source, contents, chunks)
        table = path.with_suffix(".problems.csv")
        _write_problems(scratch / table.name, problems)
        for target in (table, path):
            if private:
                shutil.copymode(source.files[0], scratch / target.name)
            os.replace(scratch / target.name, target)
        if not problems:
            table.unlink()
    print_status(describe(name, contents, MoleculeCache(path).part_sizes()))
    if problems:
        print_status(describe_problems(name, problems, table))
    print_status(f"{name}: prepared molecules saved to {path}")


def describe(name: str, contents: Contents, sizes: dict[str, int]) -> str:
    """A summary of what was read.

    Example:
        >>> contents = Contents(10, ("A", "B"), "regression", "column 'A' has '2'")
        >>> print(describe("mine.csv", contents, {"train": 8, "valid": 1, "test": 1}))
        mine.csv: regression (column 'A' has '2'), 2 labels: 'A', 'B'; 8 train, 1 valid, 1 test
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


class _Request:
    """A data set to load: its name, its source if available, and the folders of its cache."""

    def __init__(self, which: str | MoleculeSource, folder: Path) -> None:
        self._source: MoleculeSource | None
        self.private = not isinstance(which, str)
        if isinstance(which, str):
            dataset = dataset_named(which)
            self.name = dataset.name
            self._source = dataset.find(folder)
            self._advice = dataset.describe_missing(folder)
        else:
            self.name = _cache_name(which)
            missing = which.missing()
            self._source = None if missing else which
            self._advice = _describe_missing(missing) if missing else ""
        self._folders = _cache_folders(folder, self.private)
        self._fingerprint: dict[str, Any] | None = None
        if self._source is not None:
            self._fingerprint = self._source.fingerprint()
        self.rejected: list[str] = []  # why the caches found by the last search cannot be used

    def find_cache(self) -> MoleculeCache | None:
        """The first cache that is intact and, if the source is available, up to date."""
        self.rejected = []
        for folder in self._folders:
            cache = MoleculeCache(folder / f"{self.name}.safetensors")
            if cache.path.is_file():
                try:
                    cache.check(self._fingerprint)
                except UnusableFileError as error:
                    self.rejected.append(str(error))
                else:
                    return cache
        return None

    def source(self) -> MoleculeSource:
        """The source. `MissingDataError` explains how to get it."""
        if self._source is None:
            raise MissingDataError(" ".join([*(f"{r}." for r in self.rejected), self._advice]))
        return self._source

    def writable_folder(self) -> Path:
        """The first folder that can be written to, created if necessary."""
        for folder in self._folders:
            if _is_writable(folder):
                folder.mkdir(parents=True, exist_ok=True)
                return folder
        tried = ", ".join(str(folder) for folder in self._folders)
        raise PermissionError(
            f"cannot write prepared molecules to any of {tried}: choose a writable folder with "
            "--data-dir"
        )


def _cache_folders(folder: Path, private: bool) -> list[Path]:
    """The folders to search for caches. New ones are written to the first that is writable."""
    shared = Context().run(data_folder)  # regardless of --data-dir
    candidates = [folder, shared, cache_folder()]
    if private:
        candidates = [cache_folder()] if folder == shared else [folder, cache_folder()]
    return [candidate / FOLDER for candidate in dict.fromkeys(candidates)]


def _is_writable(folder: Path) -> bool:
    while not folder.exists():
        folder = folder.parent
    # root may write anywhere, but should not write to read-only folders
    return bool(folder.stat().st_mode & 0o222) and os.access(folder, os.W_OK)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Exclude other processes from a block with the same path; wait for one that is inside."""
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        print_status(f"waiting for another process that is preparing {path.stem}")
        lock.acquire()
    try:
        yield
    finally:
        with suppress(OSError):  # Windows removes it on release
            path.unlink()
        lock.release()


def _cache_name(source: MoleculeSource) -> str:
    """A cache name for a user's source: the file's name and a hash of its path and settings."""
    identity = json.dumps([str(source.location.resolve()), source.recipe()], sort_keys=True)
    stem = source.location.name.split(".")[0]
    return f"{stem}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


def _describe_missing(files: list[Path]) -> str:
    found = [f"{file} {'is not a file' if file.exists() else 'does not exist'}" for file in files]
    base = "" if files[0].is_absolute() else f", which is relative to {Path.cwd()}"
    return f"{', '.join(found)}. Check the path (--csv){base}"
