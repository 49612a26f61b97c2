"""From SMILES to OGB's features of atoms and bonds, in several processes."""

from __future__ import annotations

import importlib.util
import re
import runpy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from joblib import Parallel, delayed

from equipool.experiments.molecules.molecule_set import (
    ATOM_CATEGORIES,
    BOND_CATEGORIES,
    MoleculeSet,
)
from equipool.extras import check_extras

CHUNK = 512  # molecules that a process featurises at a time
MIN_ROWS = 10_000  # fewer are done before further processes have started
LOG_START = re.compile(r"\[[\d:]+\] (SMILES Parse Error: )?")  # of a line of RDKit's log

Array = npt.NDArray[Any]
Graph = tuple[Array, Array, Array]  # atoms [V, 9], bonds [E, 3] and their ends [E, 2]


@dataclass(frozen=True)
class Problem:
    """A molecule that RDKit rejects."""

    row: int  # of the source; the first data row is 0
    smiles: str
    reason: str
    kept: bool  # True if the molecule is in the set nevertheless


class One(NamedTuple):
    """What became of one SMILES."""

    row: int
    graph: Graph | None
    scaffold: str
    problem: Problem | None


class Featurised(NamedTuple):
    """Molecules without labels, and what became of each SMILES."""

    molecules: MoleculeSet
    rows: list[int]  # [G] position of each molecule among the SMILES
    scaffolds: list[str]  # [G]
    problems: tuple[Problem, ...]


def featurise(
    smiles: Sequence[str], keep_unsanitised: bool = False, scaffolds: bool = False
) -> Featurised:
    """The molecules of these SMILES; many are done on all cores. Those that RDKit rejects are left
    out, unless they can be parsed at all and `keep_unsanitised` is True. `scaffolds` asks for the
    scaffolds."""
    check_extras("preparing molecules", {"molecules": ("ogb", "rdkit")})
    from rdkit import Chem

    work = delayed(featurise_one)
    parallel = Parallel(-1 if len(smiles) > MIN_ROWS else 1, batch_size=CHUNK)
    found = parallel(work(*one, keep_unsanitised, scaffolds) for one in enumerate(smiles))
    read = [one for one in found if one.graph is not None]
    nothing = features_of(Chem.Mol())  # so that there are arrays to join
    atoms, bonds, ends = zip(nothing, *(one.graph for one in read), strict=True)
    num_atoms, num_bonds = (
        torch.tensor([len(own) for own in arrays[1:]], dtype=torch.int64)
        for arrays in (atoms, bonds)
    )
    joined = (torch.from_numpy(np.concatenate(arrays)) for arrays in (atoms, bonds, ends))
    return Featurised(
        MoleculeSet.of(num_atoms, num_bonds, *joined),
        [one.row for one in read],
        [one.scaffold for one in read],
        tuple(one.problem for one in found if one.problem is not None),
    )


def featurise_one(row: int, smiles: str, keep_unsanitised: bool, scaffolds: bool) -> One:
    from rdkit import rdBase

    with rdBase.BlockLogs():
        molecule, reason = parse_smiles(smiles, keep_unsanitised)
        try:
            graph = None if molecule is None else features_of(molecule)
        except ValueError as error:  # such as a stereo bond for which OGB has no category
            graph, reason = None, f"OGB has no features for it: {error}"
        scaffold = scaffold_of(molecule, smiles) if scaffolds and graph is not None else ""
    problem = Problem(row, smiles, reason, kept=graph is not None) if reason else None
    return One(row, graph, scaffold, problem)


def parse_smiles(smiles: str, keep_unsanitised: bool = False) -> tuple[Any | None, str]:
    """The RDKit molecule, if there is one, and why RDKit rejects it, or ""."""
    from rdkit import Chem, rdBase

    if not smiles:
        return None, "empty"
    if len(smiles.split()) > 1:
        return None, "contains white space; RDKit would ignore what follows it"
    with getattr(rdBase, "CaptureErrorLog", rdBase.BlockLogs)() as log:  # since RDKit 2026.3
        molecule: Any = Chem.MolFromSmiles(smiles)
    if molecule is None:
        messages = getattr(log, "messages", "RDKit rejects it")
        reason = LOG_START.sub("", str(messages).split("\n", 1)[0])
        return unsanitised(smiles) if keep_unsanitised else None, reason
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


def features_of(molecule: Any) -> Graph:
    """Atoms, bonds and their ends of an RDKit molecule, as `ogb.utils.mol.smiles2graph` has them:
    both directions of a bond are adjacent. Raises `ValueError` for a molecule without such
    features."""
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
