"""The experiment on molecules."""

from equipool.experiments.molecules.predicting import predict, predict_molecules
from equipool.experiments.molecules.task import MoleculeTask

__all__ = ["MoleculeTask", "predict", "predict_molecules"]
