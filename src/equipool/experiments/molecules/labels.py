"""What is predicted of a molecule, and how wrong and how good predictions are."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from equipool.experiments.molecules.data.graphs import MoleculeSet
from equipool.experiments.molecules.data.labels import label_moments
from equipool.experiments.molecules.data.metrics import (
    absolute_error,
    has_both,
    mean_average_precision,
    mean_roc_auc,
)
from equipool.experiments.molecules.network.units import Units

# What classifiers can be judged by. Data sets are by what OGB or custom says.
MEASURES = {"roc_auc": mean_roc_auc, "average_precision": mean_average_precision}
JUDGED_BY_PRECISION = ("molpcba", "toxcast")


class Labels(ABC):
    """Labels of one kind, some of which may be missing: NaN."""

    @abstractmethod
    def units(self) -> nn.Module | None:
        """What brings a network's outputs to the labels' units; None where they have none."""

    @abstractmethod
    def loss(self, prediction: Tensor, labels: Tensor) -> Tensor:
        """The loss of each label, `[G, L]`, where none is missing."""

    @abstractmethod
    def scores(self, prediction: Tensor, labels: Tensor) -> dict[str, float]:
        """How good predictions `[n, L]` are; `"score"`, of which more is better, is among them.
        NaN where there is nothing to measure."""

    def losses(self, prediction: Tensor, labels: Tensor) -> Tensor:
        """The loss of each label, `[G, L]`; that of a missing one is 0 and passes no gradient."""
        present = ~torch.isnan(labels)
        found = self.loss(prediction, torch.where(present, labels, 0))
        return torch.where(present, found, 0)

    def measures(self, prediction: Tensor, labels: Tensor) -> dict[str, float]:
        """The scores, and the mean loss over the labels that are there."""
        present = int((~torch.isnan(labels)).sum())
        total = float(self.losses(prediction, labels).sum(dtype=torch.float64))
        loss = total / present if present else math.nan
        return self.scores(prediction, labels) | {"loss": loss}


class BinaryLabels(Labels):
    """0 or 1, predicted by the logarithm of their odds, under the cross-entropy.

    Args:
        measure: a name in `MEASURES`, by which they are judged.
    """

    def __init__(self, measure: str = "roc_auc") -> None:
        self.measure = measure

    def units(self) -> nn.Module | None:
        return None

    def loss(self, prediction: Tensor, labels: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(prediction, labels, reduction="none")

    def scores(self, prediction: Tensor, labels: Tensor) -> dict[str, float]:
        both = bool(has_both(labels).any())
        found = {
            name: measure(prediction, labels) if both else math.nan
            for name, measure in MEASURES.items()
        }
        return found | {"score": found[self.measure]}


class NumericLabels(Labels):
    """Numbers, under the absolute error in units of each label's standard deviation. They are
    judged by its mean over the labels, with a minus sign.

    Args:
        labels: those of the training molecules, `[n, L]`, from which mean and deviation are taken.
        names: of the labels.
    """

    def __init__(self, labels: Tensor, names: Sequence[str]) -> None:
        self.mean, self.deviation = label_moments(labels)
        self.names = tuple(names)

    def units(self) -> nn.Module | None:
        return Units(self.mean, self.deviation)

    def loss(self, prediction: Tensor, labels: Tensor) -> Tensor:
        return (prediction - labels).abs() / self.deviation

    def scores(self, prediction: Tensor, labels: Tensor) -> dict[str, float]:
        """`mae` is the mean over the labels in units of their deviations, and `mae_NAME` that of
        a label in its own."""
        each = torch.full((len(self.names),), torch.nan, dtype=torch.float64)
        if len(labels):
            each = absolute_error(prediction, labels)
        mean = float((each / self.deviation.to(each)).nanmean())
        own = dict(zip((f"mae_{name}" for name in self.names), each.tolist(), strict=True))
        return {"score": -mean, "mae": mean, **own}


def labels_of(
    molecules: MoleculeSet, training: Tensor, device: torch.device, measure: str
) -> Labels:
    """The labels of a data set, whose losses are taken on a device.

    Args:
        molecules: the data set, on the CPU.
        training: positions of the molecules to train on, whose labels may be read.
        device: where predictions are.
        measure: of binary labels.
    """
    if molecules.kind == "classification":
        return BinaryLabels(measure)
    return NumericLabels(molecules.labels[training].to(device), molecules.label_names)


def usual_measure(dataset: str | None) -> str:
    """By what a classifier of this data set is judged."""
    return "average_precision" if dataset in JUDGED_BY_PRECISION else "roc_auc"
