"""Molecule data: sources, splits, features and caches."""

from equipool.experiments.molecules.data.csv_source import CsvSource
from equipool.experiments.molecules.data.datasets import DATASETS
from equipool.experiments.molecules.data.featurize import (
    KeepUnsanitised,
    LeaveOut,
    Problem,
    molecules_from_smiles,
)
from equipool.experiments.molecules.data.load import load_molecules, load_problems
from equipool.experiments.molecules.data.molecule_set import (
    ATOM_CATEGORIES,
    BOND_CATEGORIES,
    MoleculeSet,
)
from equipool.experiments.molecules.data.ogb_source import OgbFolder
from equipool.experiments.molecules.data.splits import (
    ColumnSplit,
    RandomSplit,
    ScaffoldSplit,
    split_named,
)

__all__ = [
    "ATOM_CATEGORIES",
    "BOND_CATEGORIES",
    "DATASETS",
    "ColumnSplit",
    "CsvSource",
    "KeepUnsanitised",
    "LeaveOut",
    "MoleculeSet",
    "OgbFolder",
    "Problem",
    "RandomSplit",
    "ScaffoldSplit",
    "load_molecules",
    "load_problems",
    "molecules_from_smiles",
    "split_named",
]
