"""Losses and scores of labels, by OGB's rules: a metric is computed per label without missing
labels (NaN), then averaged over the labels for which it is defined."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from equipool.experiments.molecules.molecule_set import MoleculeSet


def label_losses(prediction: Tensor, labels: Tensor, kind: str, deviation: Tensor) -> Tensor:
    """The loss of each label, `[G, L]`; 0, without gradient, for missing labels.

    For classification the cross-entropy of logits; for regression the absolute error in units of
    each label's standard deviation, `deviation [L]`.
    """
    present = ~torch.isnan(labels)
    labels = torch.where(present, labels, 0)
    if kind == "classification":
        entropy = functional.binary_cross_entropy_with_logits
        found = entropy(prediction, labels.to(prediction.dtype), reduction="none")
    else:
        found = (prediction - labels).abs() / deviation
    return torch.where(present, found, 0)


def score(
    molecules: MoleculeSet, labels: Tensor, prediction: Tensor, deviation: Tensor, measure: str
) -> dict[str, float]:
    """Metrics of predictions `[n, L]` for `labels [n, L]`, among them the mean `"loss"` over the
    labels that are not missing, and `"score"`, for which higher is better. NaN where a metric is
    undefined.

    For regression the score is minus `mae`, the mean absolute error in units of the deviations;
    `mae_NAME` is that of one label in its own units. `measure` names the score of classification.
    """
    known = ~labels.isnan()
    losses = label_losses(prediction, labels, molecules.kind, deviation)
    loss = float(losses.sum(dtype=torch.float64) / known.sum())
    if molecules.kind == "classification":
        found = classification_scores(prediction, labels)
        return found | {"score": found[measure], "loss": loss}
    errors = torch.where(known, (prediction.double() - labels.double()).abs(), 0)
    each = errors.sum(0) / known.sum(0)
    mean = float((each / deviation)[known.any(0)].mean())
    own = zip((f"mae_{name}" for name in molecules.label_names), each.tolist(), strict=True)
    return {"score": -mean, "mae": mean, **dict(own), "loss": loss}


def classification_scores(prediction: Tensor, labels: Tensor) -> dict[str, float]:
    """ROC-AUC and average precision, averaged over the labels that have both a 0 and a 1: from
    predictions `[n, L]` and labels `[n, L]`, 0, 1 or NaN where missing.

    Example:
        >>> prediction = torch.tensor([[0.1], [0.4], [0.4], [0.8]])
        >>> classification_scores(prediction, torch.tensor([[0.0], [0.0], [1.0], [1.0]]))
        {'roc_auc': 0.875, 'average_precision': 0.8333333333333333}
    """
    from sklearn import metrics

    measures = {
        "roc_auc": metrics.roc_auc_score, "average_precision": metrics.average_precision_score,
    }  # fmt: skip
    found: dict[str, list[float]] = {name: [] for name in measures}
    for label in has_both(labels).nonzero().flatten().tolist():
        known = ~labels[:, label].isnan()
        truth, values = labels[known, label], prediction[known, label]
        for name, measure in measures.items():
            defined = bool(values.isfinite().all())
            found[name].append(float(measure(truth, values)) if defined else math.nan)
    return {name: sum(own) / len(own) if own else math.nan for name, own in found.items()}


def has_both(labels: Tensor) -> Tensor:
    """Which labels have both a 0 and a 1, `[n, L] -> [L]`."""
    return (labels == 0).any(0) & (labels == 1).any(0)


def label_moments(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column of `labels [G, L]` without missing labels (NaN),
    computed in float64: energies have large means and small deviations. The deviation is 1 for a
    column without two different labels, the mean 0 for one without labels.

    Example:
        >>> label_moments(torch.tensor([[1.0, 5.0], [3.0, float("nan")]]))
        (tensor([2., 5.]), tensor([1., 1.]))
    """
    numbers = labels.double()
    mean = numbers.nanmean(0).nan_to_num()
    variance = (numbers - mean).square().nanmean(0).nan_to_num()
    deviation = torch.where(variance > 0, variance.sqrt(), 1.0)
    return mean.to(labels.dtype), deviation.to(labels.dtype)
