"""Molecules: featurised, split, cached, and measured as OGB does."""

from equipool.data.molecules.csv_source import CsvSource
from equipool.data.molecules.from_smiles import molecules_from_smiles
from equipool.data.molecules.graphs import ATOM_CATEGORIES, BOND_CATEGORIES, MoleculeSet
from equipool.data.molecules.known import KNOWN
from equipool.data.molecules.labels import label_moments
from equipool.data.molecules.loading import load_molecules, load_problems
from equipool.data.molecules.ogb_folder import OgbFolder
from equipool.data.molecules.smiles import KeepUnsanitised, LeaveOut, Problem
from equipool.data.molecules.splits import ColumnSplit, RandomSplit, ScaffoldSplit, split_named

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
