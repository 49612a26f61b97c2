"""Molecule data: sources, splits, features and caches."""

from equipool.experiments.molecules.data.datasets import DATASETS
from equipool.experiments.molecules.data.featurize import Problem, molecules_from_smiles
from equipool.experiments.molecules.data.load import load_molecules, load_problems
from equipool.experiments.molecules.data.molecule_set import MoleculeSet
from equipool.experiments.molecules.data.ogb_source import OgbFolder
from equipool.experiments.molecules.data.sources import CsvSource
from equipool.experiments.molecules.data.splits import ColumnSplit, RandomSplit, ScaffoldSplit

__all__ = [
    "DATASETS", "ColumnSplit", "CsvSource", "MoleculeSet", "OgbFolder", "Problem", "RandomSplit",
    "ScaffoldSplit", "load_molecules", "load_problems", "molecules_from_smiles",
]  # fmt: skip
