"""Kinds of labels: their losses and scores."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from equipool.experiments.molecules.data.molecule_set import MoleculeSet
from equipool.experiments.molecules.metrics import (
    absolute_error,
    has_both,
    mean_average_precision,
    mean_roc_auc,
)
from equipool.experiments.molecules.network import Units

MEASURES = {"roc_auc": mean_roc_auc, "average_precision": mean_average_precision}
SCORED_BY_PRECISION = ("molpcba", "toxcast")


class Labels(ABC):
    """Labels of one kind. Missing labels are NaN."""

    @abstractmethod
    def units(self) -> nn.Module | None:
        """A module that scales the network's outputs to the labels' units, if they have any."""

    @abstractmethod
    def loss(self, prediction: Tensor, labels: Tensor) -> Tensor:
        """The loss of each label, `[G, L]`. No label may be missing."""

    @abstractmethod
    def scores(self, prediction: Tensor, labels: Tensor) -> dict[str, float]:
        """Metrics of predictions `[n, L]`, among them `"score"`, for which higher is better. NaN
        where a metric is undefined."""

    def losses(self, prediction: Tensor, labels: Tensor) -> Tensor:
        """The loss of each label, `[G, L]`; 0, without gradient, for missing labels."""
        present = ~torch.isnan(labels)
        found = self.loss(prediction, torch.where(present, labels, 0))
        return torch.where(present, found, 0)

    def measures(self, prediction: Tensor, labels: Tensor) -> dict[str, float]:
        """The scores, and the mean loss over the labels that are not missing."""
        present = int((~torch.isnan(labels)).sum())
        total = float(self.losses(prediction, labels).sum(dtype=torch.float64))
        loss = total / present if present else math.nan
        return self.scores(prediction, labels) | {"loss": loss}


class BinaryLabels(Labels):
    """Labels 0 and 1, predicted as logits, with the cross-entropy as the loss.

    Args:
        measure: the name in `MEASURES` of the metric used as the score.
    """

    def __init__(self, measure: str = "roc_auc") -> None:
        self.measure = measure

    def units(self) -> nn.Module | None:
        return None

    def loss(self, prediction: Tensor, labels: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(prediction, labels, reduction="none")

    def scores(self, prediction: Tensor, labels: Tensor) -> dict[str, float]:
        defined = bool(has_both(labels).any())
        found = {
            name: measure(prediction, labels) if defined else math.nan
            for name, measure in MEASURES.items()
        }
        return found | {"score": found[self.measure]}


class NumericLabels(Labels):
    """Numbers. The loss is the absolute error in units of each label's standard deviation, and the
    score is minus its mean over the labels.

    Args:
        labels: of the training molecules, `[n, L]`; they give the means and deviations.
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
        """`mae` is the mean over the labels in units of their deviations; `mae_NAME` is that of one
        label in its own units."""
        each = torch.full((len(self.names),), torch.nan, dtype=torch.float64)
        if len(labels):
            each = absolute_error(prediction, labels)
        mean = float((each / self.deviation.to(each)).nanmean())
        own = dict(zip((f"mae_{name}" for name in self.names), each.tolist(), strict=True))
        return {"score": -mean, "mae": mean, **own}


def labels_of(
    molecules: MoleculeSet, training: Tensor, device: torch.device, measure: str
) -> Labels:
    """The kind of labels of a data set.

    Args:
        molecules: the data set, on the CPU.
        training: positions of the training molecules; only their labels are read.
        device: where the predictions are.
        measure: the score of binary labels.
    """
    if molecules.kind == "classification":
        return BinaryLabels(measure)
    return NumericLabels(molecules.labels[training].to(device), molecules.label_names)


def usual_measure(dataset: str | None) -> str:
    """The customary score for classification on this data set."""
    return "average_precision" if dataset in SCORED_BY_PRECISION else "roc_auc"


def label_moments(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column of `labels [G, L]` without missing labels (NaN):
    `[L]` and `[L]`. Computed in float64: energies have large means and small deviations.

    The deviation is 1 for a column without two different labels, so that it can be divided by. The
    mean is 0 for a column without labels.

    Example:
        >>> label_moments(torch.tensor([[1.0, 5.0], [3.0, float("nan")]]))
        (tensor([2., 5.]), tensor([1., 1.]))
    """
    present = ~labels.isnan()
    numbers = labels.double().masked_fill(~present, 0)
    count = present.sum(0).clamp(min=1)
    mean = numbers.sum(0) / count
    variance = (numbers - mean).masked_fill(~present, 0).square().sum(0) / count
    deviation = torch.where(variance > 0, variance.sqrt(), 1.0)
    return mean.to(labels.dtype), deviation.to(labels.dtype)
