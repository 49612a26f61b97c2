"""Kinds of labels: their losses, and their scores by OGB's rules: a metric is computed per label
without missing labels (NaN), then averaged over the labels for which it is defined."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from equipool.experiments.molecules.data.molecule_set import MoleculeSet
from equipool.experiments.molecules.network.layers import Units

SCORED_BY_PRECISION = ("molpcba", "toxcast")


class Labels(ABC):
    """Labels of one kind. Missing labels are NaN."""

    def units(self) -> nn.Module | None:
        """A module that scales the network's outputs to the labels' units, if they have any."""
        return None

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
    """Labels 0 and 1, predicted as logits, with the cross-entropy as the loss. `measure` names the
    metric that is the score, `"roc_auc"` or `"average_precision"`."""

    def __init__(self, measure: str = "roc_auc") -> None:
        self.measure = measure

    def loss(self, prediction: Tensor, labels: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(prediction, labels, reduction="none")

    def scores(self, prediction: Tensor, labels: Tensor) -> dict[str, float]:
        measures = {"roc_auc": roc_auc, "average_precision": average_precision}
        found = {name: mean_over_labels(m, prediction, labels) for name, m in measures.items()}
        return found | {"score": found[self.measure]}


class NumericLabels(Labels):
    """Numbers. The loss is the absolute error in units of each label's standard deviation, and the
    score is minus its mean over the labels. The training molecules' `labels [n, L]` give the means
    and deviations."""

    def __init__(self, labels: Tensor, names: tuple[str, ...]) -> None:
        self.mean, self.deviation = label_moments(labels)
        self.names = names

    def units(self) -> nn.Module | None:
        return Units(self.mean, self.deviation)

    def loss(self, prediction: Tensor, labels: Tensor) -> Tensor:
        return (prediction - labels).abs() / self.deviation

    def scores(self, prediction: Tensor, labels: Tensor) -> dict[str, float]:
        """`mae` is the mean over the labels in units of their deviations; `mae_NAME` is that of one
        label in its own units."""
        each = absolute_error(prediction, labels)
        mean = float((each / self.deviation.to(each)).nanmean())
        own = dict(zip((f"mae_{name}" for name in self.names), each.tolist(), strict=True))
        return {"score": -mean, "mae": mean, **own}


def labels_of(
    molecules: MoleculeSet, training: Tensor, device: torch.device, measure: str
) -> Labels:
    """The kind of labels of a data set, given the positions of its training molecules (only their
    labels are read), the device of the predictions and the score of binary labels."""
    if molecules.kind == "classification":
        return BinaryLabels(measure)
    return NumericLabels(molecules.labels[training].to(device), molecules.label_names)


def usual_measure(dataset: str | None) -> str:
    """The customary score for classification on this data set."""
    return "average_precision" if dataset in SCORED_BY_PRECISION else "roc_auc"


def label_moments(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column of `labels [G, L]` without missing labels (NaN),
    computed in float64: energies have large means and small deviations. The deviation is 1 for a
    column without two different labels, the mean 0 for one without labels.

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


def roc_auc(predictions: Tensor, labels: Tensor) -> Tensor:
    """Area under the ROC curve of each label: the probability that a molecule with label 1 has a
    higher prediction than one with label 0; ties count half.

    From scores `[G, L]` and labels `[G, L]`, 0, 1 or NaN where missing, to `[L]` float64, NaN for a
    label without a 0, without a 1, or with a NaN prediction.

    Example:
        >>> predictions = torch.tensor([[0.1], [0.4], [0.4], [0.8]])
        >>> roc_auc(predictions, torch.tensor([[0.0], [0.0], [1.0], [1.0]]))
        tensor([0.8750], dtype=torch.float64)
    """
    hits, misses = _curve(predictions, labels)
    area = (misses.diff(dim=0) * (hits[1:] + hits[:-1])).sum(0) / 2
    return _where_defined(area / (hits[-1] * misses[-1]), predictions, labels)


def average_precision(predictions: Tensor, labels: Tensor) -> Tensor:
    r"""Average precision of each label, $\sum_k (R_k - R_{k-1}) P_k$ over the thresholds $k$, with
    precision $P$ and recall $R$. Arguments and result as for `roc_auc`.

    Example:
        >>> average_precision(torch.tensor([[0.1], [0.4], [0.8]]), torch.tensor([[1.0], [0], [1]]))
        tensor([0.8333], dtype=torch.float64)
    """
    hits, misses = _curve(predictions, labels)
    precision = hits[1:] / (hits[1:] + misses[1:]).clamp(min=1)
    found = (hits.diff(dim=0) * precision).sum(0)
    return _where_defined(found / hits[-1], predictions, labels)


def absolute_error(predictions: Tensor, labels: Tensor) -> Tensor:
    """Mean absolute error of each label, `[G, L], [G, L] -> [L]` float64; NaN for a label that is
    missing everywhere."""
    known = ~labels.isnan()
    errors = (predictions.double() - labels.double()).abs().masked_fill(~known, 0)
    return errors.sum(0) / known.sum(0)


def mean_over_labels(
    measure: Callable[[Tensor, Tensor], Tensor], predictions: Tensor, labels: Tensor
) -> float:
    """Mean of `roc_auc` or `average_precision` over the labels that have both a 0 and a 1; NaN if
    there are none."""
    return float(measure(predictions, labels)[has_both(labels)].mean())


def has_both(labels: Tensor) -> Tensor:
    """Which labels have both a 0 and a 1, `[G, L] -> [L]`."""
    return (labels == 0).any(0) & (labels == 1).any(0)


def _curve(predictions: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers of true and of false positives at each threshold, highest first, after a row of
    zeros: `[G + 1, L]` each. Equal predictions share the counts of the last of them."""
    if predictions.ndim != 2 or predictions.shape != labels.shape:
        found = f"{tuple(predictions.shape)} and {tuple(labels.shape)}"
        raise ValueError(f"predictions and labels: expected the same shape [G, L], found {found}")
    ordered, order = predictions.sort(dim=0, descending=True)
    labels = labels.gather(0, order)
    last = torch.ones_like(ordered, dtype=torch.bool)
    last[:-1] = ordered[1:] != ordered[:-1]
    number = labels.shape[0]
    rows = torch.arange(number, device=labels.device).unsqueeze(1).expand(labels.shape)
    # for each row, the last row with an equal prediction
    ends = rows.masked_fill(~last, number).flip(0).cummin(0).values.flip(0)
    counts = ((labels == value).cumsum(0, dtype=torch.float64).gather(0, ends) for value in (1, 0))
    hits, misses = (functional.pad(count, (0, 0, 1, 0)) for count in counts)
    return hits, misses


def _where_defined(values: Tensor, predictions: Tensor, labels: Tensor) -> Tensor:
    unusable = (predictions.isnan() & ~labels.isnan()).any(0) | ~has_both(labels)
    return values.masked_fill(unusable, torch.nan)
