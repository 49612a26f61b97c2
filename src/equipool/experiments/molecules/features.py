"""From SMILES to OGB's features of atoms and bonds, in several processes."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import runpy
import signal
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from equipool import extras
from equipool.experiments.molecules.molecule_set import (
    ATOM_CATEGORIES,
    BOND_CATEGORIES,
    MoleculeSet,
)

CHUNK = 512  # molecules that a process featurises at a time
MIN_ROWS = 10_000  # fewer are done before further processes have started
UNREADABLE = "RDKit cannot parse it as SMILES"
CONTAINS_SPACE = "contains white space; RDKit would ignore what follows it"

Array = npt.NDArray[Any]
NO_ATOMS = (
    np.empty((0, len(ATOM_CATEGORIES)), np.uint8),
    np.empty((0, len(BOND_CATEGORIES)), np.uint8),
    np.empty((0, 2), np.int32),
)


@dataclass(frozen=True)
class Problem:
    """A molecule that RDKit rejects."""

    row: int  # of the source; the first data row is 0
    smiles: str
    reason: str
    kept: bool  # True if the molecule is in the set nevertheless


class Chunk(NamedTuple):
    """What `Featurised` has, for some of the SMILES."""

    rows: list[int]
    scaffolds: list[str]
    problems: list[Problem]
    arrays: tuple[Array, ...]  # the arguments of `MoleculeSet.of`, with ends [E, 2]


class Featurised(NamedTuple):
    """Molecules without labels, and what became of each SMILES."""

    molecules: MoleculeSet
    rows: list[int]  # [G] position of each molecule among the SMILES
    scaffolds: list[str]  # [G]
    problems: tuple[Problem, ...]


def featurise(
    smiles: Sequence[str], keep_unsanitised: bool = False, scaffolds: bool = False
) -> Featurised:
    """The molecules of these SMILES. Those that RDKit rejects are left out, unless they can be
    parsed at all and `keep_unsanitised` is True. `scaffolds` asks for the scaffolds.

    Many are done on all cores by processes that import the main script, so a script has to guard
    what it does with `if __name__ == "__main__":`.
    """
    extras.check_extras("preparing molecules", {"molecules": ("ogb", "rdkit")})
    rows = [range(first, len(smiles))[:CHUNK] for first in range(0, len(smiles) or 1, CHUNK)]
    texts = [smiles[some.start : some.stop] for some in rows]
    work = partial(_featurise_chunk, keep_unsanitised=keep_unsanitised, scaffolds=scaffolds)
    if len(smiles) <= MIN_ROWS:
        return _joined(map(work, rows, texts))
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(None, context, _set_up_worker) as pool:
            return _joined(pool.map(work, rows, texts))
    except BrokenProcessPool as error:
        raise ChildProcessError(
            "a featurising process ended: either memory is full, or the main script lacks the "
            'guard `if __name__ == "__main__":`, which processes need'
        ) from error


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


def features_of(molecule: Any) -> tuple[Array, Array, Array]:
    """Atoms `[V, 9]`, bonds `[E, 3]` and their ends `[E, 2]` of an RDKit molecule, as
    `ogb.utils.mol.smiles2graph` has them: both directions of a bond are adjacent. Raises
    `ValueError` for a molecule without such features."""
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
        np.array(ends, np.int32).reshape(-1, 2),
    )


def scaffold_of(molecule: Any, smiles: str) -> str:
    """The Bemis-Murcko scaffold as SMILES, with chirality: "" without rings. A molecule whose
    scaffold RDKit cannot compute has one of its own."""
    from rdkit.Chem.Scaffolds import MurckoScaffold

    try:
        return str(MurckoScaffold.MurckoScaffoldSmiles(mol=molecule, includeChirality=True))
    except (RuntimeError, ValueError):  # the scaffold alone may have an invalid valence
        return f"alone: {smiles}"


@cache
def ogb_features() -> SimpleNamespace:
    """`ogb.utils.features`, loaded from its file: `import ogb` would contact the network."""
    package = importlib.util.find_spec("ogb")
    assert package is not None
    assert package.submodule_search_locations
    file = Path(package.submodule_search_locations[0], "utils", "features.py")
    return SimpleNamespace(**runpy.run_path(str(file)))


def _featurise_chunk(
    rows: Sequence[int], texts: Sequence[str], keep_unsanitised: bool, scaffolds: bool
) -> Chunk:
    from rdkit import rdBase

    found, graphs = Chunk([], [], [], ()), [NO_ATOMS]
    with rdBase.BlockLogs():
        for row, smiles in zip(rows, texts, strict=True):
            molecule, reason = parse_smiles(smiles, keep_unsanitised)
            try:
                features = None if molecule is None else features_of(molecule)
            except ValueError as error:  # such as a stereo bond for which OGB has no category
                features, reason = None, f"OGB has no features for it: {error}"
            if reason:
                found.problems.append(Problem(row, smiles, reason, kept=features is not None))
            if features is not None:
                graphs.append(features)
                found.rows.append(row)
                found.scaffolds.append(scaffold_of(molecule, smiles) if scaffolds else "")
    atoms, bonds, ends = zip(*graphs, strict=True)
    sizes = (np.array([len(own) for own in arrays[1:]], np.int64) for arrays in (atoms, bonds))
    return found._replace(arrays=(*sizes, *map(np.concatenate, (atoms, bonds, ends))))


def _joined(chunks: Iterable[Chunk]) -> Featurised:
    rows, scaffolds, problems, arrays = zip(*chunks, strict=True)
    num_atoms, num_bonds, atoms, bonds, ends = (
        torch.from_numpy(np.concatenate(several)) for several in zip(*arrays, strict=True)
    )
    molecules = MoleculeSet.of(num_atoms, num_bonds, atoms, bonds, ends.T)
    return Featurised(molecules, [*chain(*rows)], [*chain(*scaffolds)], (*chain(*problems),))


def _rejection_reason(smiles: str) -> str:
    from rdkit import Chem, rdBase

    raw: Any = Chem.MolFromSmiles(smiles, sanitize=False)
    if raw is not None:
        problems = [problem.Message() for problem in Chem.DetectChemistryProblems(raw)]
        return "; ".join(problems) or UNREADABLE
    if not hasattr(rdBase, "CaptureErrorLog"):  # before 2026.3
        return UNREADABLE
    with rdBase.CaptureErrorLog() as log:
        Chem.MolFromSmiles(smiles)
    first = str(log.messages).split("\n", 1)[0]
    return first.partition("SMILES Parse Error: ")[2] or UNREADABLE


def _set_up_worker() -> None:
    """A worker leaves Ctrl-C to its parent, and ends with it even if that is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
