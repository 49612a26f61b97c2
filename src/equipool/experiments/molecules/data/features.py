"""OGB's features of atoms and bonds."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from equipool.experiments.molecules.data.graphs import ATOM_CATEGORIES, BOND_CATEGORIES

VERSION = 1  # of what is computed here; caches of another are made again
MAX_ATOMS = 2**15 - 1  # ends of bonds are int16

Bytes = npt.NDArray[np.uint8]
Ends = npt.NDArray[np.int16]


@cache
def ogb_features() -> ModuleType:
    """`ogb.utils.features`, from its file: importing `ogb` asks the network for its latest
    version."""
    package = importlib.util.find_spec("ogb")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'ogb'", name="ogb")
    file = Path(package.submodule_search_locations[0], "utils", "features.py")
    spec = importlib.util.spec_from_file_location("ogb_utils_features", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def graph_of(molecule: Any) -> tuple[Bytes, Bytes, Ends]:
    """Atoms `[V, 9]`, bonds `[E, 3]` and their ends `[2, E]` of an RDKit molecule, as
    `ogb.utils.mol.smiles2graph` has them: each bond in both directions, one after the other."""
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
