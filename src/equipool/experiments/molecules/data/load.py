"""Loading a data set: from its cache, which is prepared first if necessary."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from equipool.experiments.data import MissingDataError, cache_folder, data_folder, is_chosen
from equipool.experiments.molecules.data.cache import MoleculeCache, UnusableFileError, write_cache
from equipool.experiments.molecules.data.datasets import dataset_named
from equipool.experiments.molecules.data.featurize import Problem
from equipool.experiments.molecules.data.molecule_set import MoleculeSet
from equipool.experiments.molecules.data.sources import Contents, MoleculeSource
from equipool.experiments.molecules.data.table import listed

FOLDER = "molecules"  # of caches, in a data folder
MAX_SHOWN = 10  # rows and labels named in a message

T = TypeVar("T")


def load_molecules(which: str | MoleculeSource, data_dir: str | Path | None = None) -> MoleculeSet:
    """The molecules of a data set.

    The first call prepares them on all cores and writes one cache file; later calls read that file,
    even if the source is gone. It is rebuilt if the source has changed or the file is damaged.

    The cache of a public data set is written to `molecules` in the data folder. The cache of a
    table of your own holds a copy of its content, so it is not written to the folder that
    `EQUIPOOL_DATA` names: it goes to `molecules` in the folder you pass as `data_dir`
    (`--data-dir`), or else in your own cache folder (`~/.cache/equipool`), with the permissions of
    the table. A folder that cannot be written is skipped in favour of your own cache folder. The
    path is printed when the file is written.

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
    source, advice, paths = _locate(which, data_dir)
    fingerprint = None if source is None else source.fingerprint()
    found, rejected = _find_cache(paths, fingerprint)
    if found is not None:
        return found
    if source is None:
        raise MissingDataError(" ".join([*(f"{reason}." for reason in rejected), advice]))
    contents = source.examine()  # a broken source leaves no files behind
    path = _writable(paths)
    with _locked(path.with_suffix(".lock")):
        found, rejected = _find_cache(paths, fingerprint)  # prepared meanwhile by another process
        if found is not None:
            return found
        for reason in rejected:
            print_status(f"{reason}: preparing it again")
        prepare(source, contents, path, private=not isinstance(which, str))
    return MoleculeCache(path)


def prepare(
    source: MoleculeSource, contents: Contents, path: Path, *, private: bool = False
) -> None:
    """Read the source's molecules and write them to `path`, which appears, or is replaced, only
    when it is complete. The file of a private source gets the source's permissions."""
    name = source.location.name if private else path.stem
    table = path.with_suffix(".problems.csv")
    scratch = path.with_name(f".{path.stem}.partial")
    shutil.rmtree(scratch, ignore_errors=True)  # a killed process may have left one
    scratch.mkdir(mode=0o700)  # the table may be private
    try:
        molecules = source.chunks(contents)
        chunks = with_progress(molecules, name, contents.num_rows, lambda chunk: chunk.num_rows)
        problems = write_cache(scratch / path.name, scratch, source, contents, chunks)
        _write_problems(scratch / table.name, problems)
        for target in (table, path):
            if private:
                shutil.copymode(source.files[0], scratch / target.name)
            os.replace(scratch / target.name, target)
        if not problems:
            table.unlink()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print_status(describe(name, contents, MoleculeCache(path).part_sizes()))
    if problems:
        print_status(describe_problems(name, problems, table))
    print_status(f"{name}: prepared molecules saved to {path}")


def describe(name: str, contents: Contents, sizes: dict[str, int]) -> str:
    """A summary of what was read: the kind of labels and why, their names, and the part sizes."""
    reason = f" ({contents.reason})" if contents.reason else ""
    labels = _counted(len(contents.label_names), "label")
    parts = ", ".join(f"{size:,} {part}" for part, size in sizes.items())
    names = listed(contents.label_names, MAX_SHOWN)
    return f"{name}: {contents.kind}{reason}, {labels}: {names}; {parts}"


def describe_problems(name: str, problems: tuple[Problem, ...], table: Path) -> str:
    """How many molecules RDKit rejected, what became of them, and where they are listed."""
    outcomes = []
    for kept, outcome in ((True, "kept as written"), (False, "left out")):
        if rows := [str(problem.row) for problem in problems if problem.kept == kept]:
            shown = ", ".join(rows[:MAX_SHOWN]) + ", ..." * (len(rows) > MAX_SHOWN)
            word = "row" if len(rows) == 1 else "rows"
            outcomes.append(f"{len(rows):,} {outcome} ({word} {shown})")
    rejected = f"{name}: RDKit rejects {_counted(len(problems), 'molecule')}"
    return f"{rejected}: {'; '.join(outcomes)}. Rows, SMILES and reasons: {table}"


def _counted(number: int, noun: str) -> str:
    return f"1 {noun}" if number == 1 else f"{number:,} {noun}s"


def print_status(text: str) -> None:
    """Print to standard error: standard output may be a table."""
    print(text, file=sys.stderr, flush=True)


def with_progress(
    parts: Iterable[T], title: str, total: int, size: Callable[[T], int]
) -> Iterator[T]:
    """The parts, with a progress bar on standard error if rich is installed."""
    if find_spec("rich") is None:
        print_status(f"{title}: {total:,} rows")
        yield from parts
        return
    from rich import progress
    from rich.console import Console

    from equipool.training.progress import columns

    bars = progress.Progress(
        *columns(), console=Console(stderr=True), refresh_per_second=4, redirect_stdout=False
    )
    with bars:
        bar = bars.add_task(title, total=total)
        for part in parts:
            yield part
            bars.update(bar, advance=size(part))


def _write_problems(path: Path, problems: tuple[Problem, ...]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["row", "smiles", "reason", "kept"])
        writer.writeheader()
        writer.writerows(asdict(problem) for problem in problems)


def _locate(
    which: str | MoleculeSource, data_dir: str | Path | None
) -> tuple[MoleculeSource | None, str, tuple[Path, ...]]:
    """The source of a data set, or else how to get it, and where its cache may be."""
    folder = data_folder(data_dir)
    source: MoleculeSource | None
    if isinstance(which, str):
        dataset = dataset_named(which)
        name, source = dataset.name, dataset.find(folder)
        advice = dataset.describe_missing(folder)
        shared = Context().run(data_folder)  # regardless of --data-dir
        folders = [folder, shared, cache_folder()]
    else:
        missing = which.missing()
        name, source = _cache_name(which), None if missing else which
        absent = ("is not a file" if file.exists() else "does not exist" for file in missing)
        reasons = ", ".join(f"{file} {why}" for file, why in zip(missing, absent, strict=True))
        base = "" if which.location.is_absolute() else f", which is relative to {Path.cwd()}"
        advice = f"{reasons}. Check the path (--csv){base}"
        # others may read the folder of EQUIPOOL_DATA
        folders = [folder, cache_folder()] if is_chosen(data_dir) else [cache_folder()]
    paths = tuple(each / FOLDER / f"{name}.safetensors" for each in dict.fromkeys(folders))
    return source, advice, paths


def _find_cache(
    paths: Sequence[Path], fingerprint: dict[str, Any] | None
) -> tuple[MoleculeCache | None, list[str]]:
    """The first cache that is intact and, if the source is available, up to date; and why those
    before it cannot be used."""
    rejected = []
    for path in filter(Path.is_file, paths):
        cache = MoleculeCache(path)
        try:
            cache.check(fingerprint)
        except UnusableFileError as error:
            rejected.append(str(error))
        else:
            return cache, rejected
    return None, rejected


def _writable(paths: Sequence[Path]) -> Path:
    """The first path that can be written to, in a folder created if necessary."""
    for path in paths:
        if _is_writable(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            return path
    tried = ", ".join(str(path.parent) for path in paths)
    advice = "choose a writable folder with --data-dir"
    raise PermissionError(f"cannot write prepared molecules to any of {tried}: {advice}")


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
