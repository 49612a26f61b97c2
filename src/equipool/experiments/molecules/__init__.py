"""The experiment on molecules: data, networks and task."""

from equipool.experiments.molecules.storage import predict, predict_molecules
from equipool.experiments.molecules.task import MoleculeTask

__all__ = ["MoleculeTask", "predict", "predict_molecules"]
