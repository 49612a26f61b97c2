"""The experiment on molecules."""

from equipool.tasks.molecules.predicting import predict, predict_molecules
from equipool.tasks.molecules.task import MoleculeTask

__all__ = ["MoleculeTask", "predict", "predict_molecules"]
