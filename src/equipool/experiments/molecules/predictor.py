"""Predictions for SMILES from a trained run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from equipool.experiments.molecules.data import Problem, molecules_from_smiles
from equipool.experiments.molecules.data.featurize import Unparsable
from equipool.experiments.molecules.network.layers import Units
from equipool.experiments.molecules.storage import predict_molecules
from equipool.experiments.molecules.task import MoleculeTask
from equipool.training.config import task_from_config, training_from_config
from equipool.training.devices import Accelerator, products_in
from equipool.training.folder import RunFolder
from equipool.training.loading import load_weights
from equipool.training.step import evaluation_mode


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions for $n$ molecules, in the order given."""

    smiles: tuple[str, ...]
    label_names: tuple[str, ...]
    values: Tensor  # [n, L] float32 on the CPU, NaN for molecules that could not be read
    problems: tuple[Problem, ...]  # those molecules, and rejected ones that were kept


class MoleculePredictor:
    """Predicts labels of molecules: probabilities, or numbers in the labels' own units.

    The prediction for a molecule does not depend on the others, except for rounding.

    Args:
        network: in evaluation mode. It gives logits for classification.
        label_names: of its outputs.
        kind: `"classification"` or `"regression"`.
        device: of the network.
        precision: one of `equipool.training.config.PRECISIONS`.
        unparsable: what to do with molecules that RDKit rejects (default: leave them out).

    Example:
        >>> from equipool.experiments.registry import MoleculeTask
        >>> network = MoleculeTask("sum", depth=2, width=8).make_network(1, units=None).eval()
        >>> predictor = MoleculePredictor(network, ("active",), "classification")
        >>> found = predictor.predict(["CCO", "C1CC", "c1ccccc1"])
        >>> found.values.shape, found.values.isnan().flatten().tolist()
        (torch.Size([3, 1]), [False, True, False])
        >>> found.problems[0].row, found.problems[0].smiles
        (1, 'C1CC')
    """

    def __init__(
        self,
        network: nn.Module,
        label_names: Sequence[str],
        kind: str,
        device: str | torch.device = "cpu",
        precision: str = "32-true",
        unparsable: Unparsable | None = None,
    ) -> None:
        self.network, self.label_names, self.kind = network, tuple(label_names), kind
        self.device, self.precision = torch.device(device), precision
        self.unparsable = unparsable

    def predict(self, smiles: Sequence[str]) -> Predictions:
        """Predict the labels of these molecules, all of which are held in memory."""
        molecules, problems = molecules_from_smiles(smiles, self.unparsable)
        values = torch.full((len(smiles), len(self.label_names)), torch.nan)
        if len(molecules):
            with products_in(self.precision), evaluation_mode(self.network):
                found = predict_molecules(self.network, molecules, self.device)
            own = found.sigmoid() if self.kind == "classification" else found
            values[molecules.source_rows] = own
        return Predictions(tuple(smiles), self.label_names, values, problems)


def load_predictor(
    run: str | Path, which: str = "best", *, device: str | torch.device | None = None
) -> MoleculePredictor:
    """Load the network of a molecules run, in the run's precision. The training data is not needed.

    Args:
        run: the run's directory.
        which: `"best"` (by validation score) or `"last"` checkpoint.
        device: where to compute (default: a GPU if there is one).
    """
    config = RunFolder(run).read_config()
    if config["task"] != MoleculeTask.name:
        found = config["task"]
        raise ValueError(f"{run}: `predict` needs a {MoleculeTask.name} run; this one is `{found}`")
    if "data" not in config:
        raise ValueError(f"{run}: its config.json does not name the labels (expected `data`)")
    labels, kind = tuple(config["data"]["labels"]), config["data"]["kind"]
    task, precision = task_from_config(config), training_from_config(config).precision
    assert isinstance(task, MoleculeTask)
    place = Accelerator(device, precision)
    # their values are among the weights
    units = None if kind == "classification" else Units(*torch.ones(2, len(labels)))
    with redirect_stdout(sys.stderr):  # for messages about damaged checkpoints
        network = load_weights(task.make_network(len(labels), units), run, which)
    network = place.fabric.setup_module(network)
    return MoleculePredictor(network, labels, kind, place.device, precision, task.unparsable())
