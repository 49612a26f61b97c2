"""From SMILES to OGB's features of atoms and bonds, in several processes."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import runpy
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from equipool import extras
from equipool.experiments.molecules.data.molecule_set import (
    ATOM_CATEGORIES,
    BOND_CATEGORIES,
    PARTS,
    MoleculeSet,
    molecule_set,
)
from equipool.experiments.molecules.data.splits import RandomSplit, Split

FEATURES_VERSION = 1  # increase when features change: caches of another version are rebuilt
MAX_ATOMS = 2**15 - 1  # atom indices are int16
MIN_ROWS = 10_000  # fewer are done before further processes have started
REQUIRED = ("ogb", "rdkit")
UNREADABLE = "RDKit cannot parse it as SMILES"
CONTAINS_SPACE = "contains white space; RDKit would ignore what follows it"

Array = npt.NDArray[Any]
Graph = tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8], npt.NDArray[np.int16]]
NO_ATOMS: Graph = (
    np.empty((0, len(ATOM_CATEGORIES)), np.uint8),
    np.empty((0, len(BOND_CATEGORIES)), np.uint8),
    np.empty((2, 0), np.int16),
)


@dataclass(frozen=True)
class Problem:
    """A molecule that RDKit rejects."""

    row: int  # of the source; the first data row is 0
    smiles: str
    reason: str
    kept: bool  # True if the molecule is in the set nevertheless


@dataclass(frozen=True, eq=False)
class SmilesRows:
    """Some rows of a table."""

    rows: Sequence[int]
    smiles: Sequence[str]
    split_cells: Sequence[str]  # of the split's column; "" if the split reads none
    labels: Array  # [n, L] float32


@dataclass(frozen=True, eq=False)
class Chunk:
    """$g$ featurized molecules from consecutive rows of a source."""

    num_atoms: Array  # [g] int32
    num_bonds: Array  # [g] int32, each bond counted in both directions
    atoms: Array  # [v, 9] uint8
    bonds: Array  # [e, 3] uint8
    ends: Array  # [2, e] int16
    labels: Array  # [g, L] float32, NaN where missing
    source_rows: Array  # [g] int64
    groups: tuple[str, ...]  # [g] the group that the split assigns by
    problems: tuple[Problem, ...]
    num_rows: int  # rows read, including molecules left out


def featurize(batch: SmilesRows, split: Split, keep_unsanitised: bool) -> Chunk:
    """The molecules of some rows, and the problems with them."""
    from rdkit import rdBase

    problems, kept, groups, graphs = [], [], [], []
    with rdBase.BlockLogs():
        for at, smiles in enumerate(batch.smiles):
            molecule, rejected = parse_smiles(smiles, keep_unsanitised)
            graph, unsupported = _supported_graph(molecule)
            if reason := rejected or unsupported:
                problems.append(Problem(batch.rows[at], smiles, reason, kept=graph is not None))
            if graph is not None:
                kept.append(at)
                graphs.append(graph)
                groups.append(split.group(molecule, smiles, batch.split_cells[at]))
    atoms, bonds, ends = zip(NO_ATOMS, *graphs, strict=True)
    return Chunk(
        np.array([len(own) for own in atoms[1:]], np.int32),
        np.array([len(own) for own in bonds[1:]], np.int32),
        np.concatenate(atoms), np.concatenate(bonds), np.concatenate(ends, axis=1),
        batch.labels[kept], np.array(batch.rows, np.int64)[kept],
        tuple(groups), tuple(problems), len(batch.rows),
    )  # fmt: skip


def featurize_all(
    batches: Iterable[SmilesRows], num_rows: int, split: Split, keep_unsanitised: bool
) -> Iterator[Chunk]:
    """`featurize` the batches, in order, on all cores. Only a few batches are read ahead."""
    if num_rows <= MIN_ROWS:
        for batch in batches:
            yield featurize(batch, split, keep_unsanitised)
        return
    workers = num_cores()
    pending: deque[Future[Chunk]] = deque()
    try:
        with _isolated():  # it starts a process, too
            pool = ProcessPoolExecutor(workers, _Context(), _set_up_worker)
        with pool:
            try:
                for batch in batches:
                    pending.append(pool.submit(featurize, batch, split, keep_unsanitised))
                    if len(pending) == 2 * workers:
                        yield pending.popleft().result()
                while pending:
                    yield pending.popleft().result()
            finally:
                pool.shutdown(cancel_futures=True)
    except BrokenProcessPool as error:
        raise ChildProcessError(
            "a featurizing process ended unexpectedly; the machine may be out of memory"
        ) from error


def num_cores() -> int:
    """The number of cores that this process may use."""
    limited = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if limited else os.cpu_count() or 1


def molecules_from_smiles(
    smiles: Sequence[str], *, keep_unsanitised: bool = False
) -> tuple[MoleculeSet, tuple[Problem, ...]]:
    """Unlabelled molecules for prediction, and those that RDKit rejects, which are left out unless
    `keep_unsanitised` keeps them (see `CsvSource`).

    `source_rows` gives the position of each molecule in `smiles`. All split parts are empty.
    """
    check_extras()
    number = len(smiles)
    stripped, no_labels = [text.strip() for text in smiles], np.empty((number, 0), np.float32)
    batch = SmilesRows(range(number), stripped, [""] * number, no_labels)
    chunk = featurize(batch, RandomSplit(), keep_unsanitised)
    arrays = {
        name: torch.from_numpy(value)
        for name, value in vars(chunk).items()
        if isinstance(value, np.ndarray)
    }
    nowhere = torch.full((len(chunk.groups),), len(PARTS))
    return molecule_set(arrays, nowhere, (), "classification"), chunk.problems


def parse_smiles(smiles: str, keep_unsanitised: bool = False) -> tuple[Any | None, str]:
    """The RDKit molecule, if there is one, and why RDKit rejects it, or ""."""
    from rdkit import Chem

    if not smiles:
        return None, "empty"
    if len(smiles.split()) > 1:
        return None, CONTAINS_SPACE
    molecule: Any = Chem.MolFromSmiles(smiles)
    if molecule is None:
        return unsanitised(smiles) if keep_unsanitised else None, _rejection_reason(smiles)
    return (molecule, "") if molecule.GetNumAtoms() else (None, "no atoms")


def unsanitised(smiles: str) -> Any | None:
    """The RDKit molecule, whatever its valences; None if the SMILES cannot be parsed at all."""
    from rdkit import Chem

    molecule: Any = Chem.MolFromSmiles(smiles, sanitize=False)
    if molecule is None or not molecule.GetNumAtoms():
        return None
    molecule.UpdatePropertyCache(strict=False)
    all_but_valences = Chem.SANITIZE_ALL ^ Chem.SANITIZE_PROPERTIES
    Chem.SanitizeMol(molecule, all_but_valences, catchErrors=True)
    return molecule


def graph_of(molecule: Any) -> Graph:
    """Atoms `[V, 9]`, bonds `[E, 3]` and their ends `[2, E]` of an RDKit molecule.

    They equal those of `ogb.utils.mol.smiles2graph`: both directions of a bond are adjacent.
    """
    ogb = ogb_features()
    atoms = [ogb.atom_to_feature_vector(atom) for atom in molecule.GetAtoms()]
    bonds, ends = [], []
    for bond in molecule.GetBonds():
        bonds += [ogb.bond_to_feature_vector(bond)] * 2
        first, second = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        ends += [(first, second), (second, first)]
    return (
        np.array(atoms, np.uint8).reshape(-1, len(ATOM_CATEGORIES)),
        np.array(bonds, np.uint8).reshape(-1, len(BOND_CATEGORIES)),
        np.array(ends, np.int16).reshape(-1, 2).T,
    )


@cache
def ogb_features() -> SimpleNamespace:
    """`ogb.utils.features`, loaded from its file: `import ogb` would contact the network."""
    package = importlib.util.find_spec("ogb")
    assert package is not None
    assert package.submodule_search_locations
    file = Path(package.submodule_search_locations[0], "utils", "features.py")
    return SimpleNamespace(**runpy.run_path(str(file)))


def check_extras() -> None:
    """Raise `ImportError` naming what to install. Prepared molecules are read without it."""
    extras.check_extras("preparing molecules", {"molecules": REQUIRED})


def installed_versions() -> dict[str, str]:
    """The installed versions of the required packages."""
    return {name: version(name) for name in REQUIRED if importlib.util.find_spec(name)}


def _rejection_reason(smiles: str) -> str:
    from rdkit import Chem, rdBase

    raw: Any = Chem.MolFromSmiles(smiles, sanitize=False)
    if raw is not None:
        problems = [problem.Message() for problem in Chem.DetectChemistryProblems(raw)]
        return "; ".join(problems) or UNREADABLE
    capture = getattr(rdBase, "CaptureErrorLog", None)  # since 2026.3
    if capture is None:
        return UNREADABLE
    with capture() as log:
        Chem.MolFromSmiles(smiles)
    first = str(log.messages).split("\n", 1)[0]
    return first.partition("SMILES Parse Error: ")[2] or UNREADABLE


def _supported_graph(molecule: Any | None) -> tuple[Graph | None, str]:
    """The graph of an RDKit molecule and "", or None and the reason."""
    if molecule is None:
        return None, ""
    if molecule.GetNumAtoms() > MAX_ATOMS:
        return None, f"{molecule.GetNumAtoms():,} atoms, more than {MAX_ATOMS:,}"
    try:
        return graph_of(molecule), ""
    except ValueError as error:  # a stereo bond for which OGB has no category
        return None, f"OGB has no features for it: {error}"


class _Worker(SpawnProcess):
    """A spawned process that does not import the script that started it, so that scripts need no
    `if __name__ == "__main__"` guard."""

    def start(self) -> None:
        with _isolated():
            super().start()


class _Context(SpawnContext):
    Process = _Worker


@contextmanager
def _isolated() -> Iterator[None]:
    """Processes started in the block use one thread, and import neither the main script nor
    anything from the working directory."""
    main = sys.modules["__main__"]
    before = {name: os.environ.get(name) for name in ("PYTHONSAFEPATH", "OMP_NUM_THREADS")}
    sys.modules["__main__"] = ModuleType("__main__")
    os.environ.update(PYTHONSAFEPATH="1", OMP_NUM_THREADS="1")
    # inherited: Ctrl-C must not end a worker that is still starting with a traceback of its own
    masks = hasattr(signal, "pthread_sigmask")
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if masks else None
    try:
        yield
    finally:
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        sys.modules["__main__"] = main
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _set_up_worker() -> None:
    """Runs first in every worker, which ignores Ctrl-C but ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "setsid"):
        os.setsid()  # so that Linux gives every worker its own share of a busy machine
    os.dup2(2, 1)  # standard output may be a table
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
