"""Predictions for SMILES from a trained run, and tables of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from equipool.environment import resolve_device
from equipool.experiments.molecules.features import Problem, featurise
from equipool.experiments.molecules.network import Units
from equipool.experiments.molecules.task import MoleculeTask, predict
from equipool.training import RunFolder
from equipool.training.config import task_from_config, training_from_config
from equipool.training.evaluation import in_precision, load_weights
from equipool.training.step import evaluation_mode


class Predictions(NamedTuple):
    """Predictions for $n$ molecules, in the order given."""

    values: Tensor  # [n, L] float32 on the CPU, NaN for molecules that could not be read
    problems: tuple[Problem, ...]  # those molecules


@dataclass(frozen=True, eq=False)
class MoleculePredictor:
    """Predicts labels of molecules: probabilities, or numbers in the labels' own units.

    The prediction for a molecule does not depend on the others, except for rounding.

    Args:
        network: gives logits for classification.
        label_names: of its outputs.
        kind: `"classification"` or `"regression"`.
        device: of the network.
        precision: as in `equipool.training.TrainingConfig`.
        smiles_column: SMILES column of the table that the network was trained on.

    Example:
        >>> from equipool.experiments.molecules.task import MoleculeTask
        >>> network = MoleculeTask("sum", depth=2, width=8).make_network(1, units=None)
        >>> predictor = MoleculePredictor(network, ("active",), "classification")
        >>> found = predictor.predict(["CCO", "C1CC", "c1ccccc1"])
        >>> found.values.shape, found.values.isnan().flatten().tolist()
        (torch.Size([3, 1]), [False, True, False])
        >>> found.problems[0].row, found.problems[0].smiles
        (1, 'C1CC')
    """

    network: nn.Module
    label_names: tuple[str, ...]
    kind: str
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - it never changes
    precision: str = "32-true"
    smiles_column: str = MoleculeTask.smiles

    def predict(self, smiles: Sequence[str]) -> Predictions:
        """Predict the labels of these molecules, all of which are held in memory."""
        found = featurise([text.strip() for text in smiles])
        values = torch.full((len(smiles), len(self.label_names)), torch.nan)
        if found.rows:
            with in_precision(self.precision, self.device), evaluation_mode(self.network):
                own = predict(self.network, found.molecules.to(self.device))
            values[found.rows] = own.sigmoid() if self.kind == "classification" else own
        return Predictions(values, found.problems)


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
        raise ValueError(f"predict needs a molecules run; {run} is a {config['task']} run")
    labels, kind = tuple(config["data"]["labels"]), config["data"]["kind"]
    task, precision = task_from_config(config), training_from_config(config).precision
    assert isinstance(task, MoleculeTask)
    place = resolve_device(device)
    # their values are among the weights
    units = None if kind == "classification" else Units(*torch.ones(2, len(labels)))
    network = load_weights(task.make_network(len(labels), units), run, which).to(place)
    return MoleculePredictor(network, labels, kind, place, precision, task.smiles)


def predict_table(
    predictor: MoleculePredictor, queries: pa.Table, column: str, keep: Sequence[str] = ()
) -> tuple[pa.Table, tuple[Problem, ...]]:
    """A row for each molecule: columns of the queries to keep, the SMILES, and the predictions,
    null for a molecule that could not be read; and those molecules.

    Args:
        predictor: of the labels.
        queries: the molecules.
        column: of their SMILES.
        keep: other columns; one that is named like a column of the result becomes `given NAME`.
    """
    smiles = [cell or "" for cell in queries[column].to_pylist()]
    values, problems = predictor.predict(smiles)
    unread = np.isin(np.arange(len(smiles)), [problem.row for problem in problems])
    arrays = [pa.array(one, mask=unread) for one in values.numpy().T]
    written = {"smiles": smiles, **dict(zip(predictor.label_names, arrays, strict=True))}
    kept = {f"given {name}" if name in written else name: queries[name] for name in keep}
    return pa.table(kept | written), problems
