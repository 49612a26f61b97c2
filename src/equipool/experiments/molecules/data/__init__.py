"""Molecules: featurised, split, cached, and measured as OGB does."""

from equipool.experiments.molecules.data.csv_source import CsvSource
from equipool.experiments.molecules.data.from_smiles import molecules_from_smiles
from equipool.experiments.molecules.data.graphs import ATOM_CATEGORIES, BOND_CATEGORIES, MoleculeSet
from equipool.experiments.molecules.data.known import KNOWN
from equipool.experiments.molecules.data.labels import label_moments
from equipool.experiments.molecules.data.loading import load_molecules, load_problems
from equipool.experiments.molecules.data.ogb_folder import OgbFolder
from equipool.experiments.molecules.data.smiles import KeepUnsanitised, LeaveOut, Problem
from equipool.experiments.molecules.data.splits import (
    ColumnSplit,
    RandomSplit,
    ScaffoldSplit,
    split_named,
)

__all__ = [
    "ATOM_CATEGORIES",
    "BOND_CATEGORIES",
    "KNOWN",
    "ColumnSplit",
    "CsvSource",
    "KeepUnsanitised",
    "LeaveOut",
    "MoleculeSet",
    "OgbFolder",
    "Problem",
    "RandomSplit",
    "ScaffoldSplit",
    "label_moments",
    "load_molecules",
    "load_problems",
    "molecules_from_smiles",
    "split_named",
]
