"""Metrics by OGB's rules: computed per label without missing labels (NaN), then averaged over the
labels for which they are defined."""

from __future__ import annotations

import torch
from torch import Tensor


def roc_auc(predictions: Tensor, labels: Tensor) -> Tensor:
    """Area under the ROC curve of each label: the probability that a molecule with label 1 has a
    higher prediction than one with label 0; ties count half.

    Args:
        predictions: `[G, L]`, scores.
        labels: `[G, L]`, 0, 1 or NaN where missing.

    Returns:
        `[L]` float64, NaN for a label without a 0, without a 1, or with a NaN prediction.

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
    precision $P$ and recall $R$.

    Arguments and result as for `roc_auc`.

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
    missing everywhere.

    Example:
        >>> absolute_error(torch.tensor([[1.0], [2.0]]), torch.tensor([[1.5], [float("nan")]]))
        tensor([0.5000], dtype=torch.float64)
    """
    _check(predictions, labels)
    known = ~labels.isnan()
    errors = (predictions.double() - labels.double()).abs().masked_fill(~known, 0)
    return errors.sum(0) / known.sum(0)


def mean_roc_auc(predictions: Tensor, labels: Tensor) -> float:
    """Mean of `roc_auc` over the labels that have both a 0 and a 1."""
    return _mean(roc_auc(predictions, labels), has_both(labels))


def mean_average_precision(predictions: Tensor, labels: Tensor) -> float:
    """Mean of `average_precision` over the labels that have both a 0 and a 1."""
    return _mean(average_precision(predictions, labels), has_both(labels))


def _curve(predictions: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers of true and of false positives at each threshold, highest first, after a row of
    zeros: `[G + 1, L]` each. Equal predictions share the counts of the last of them."""
    _check(predictions, labels)
    if not ((labels == 0) | (labels == 1) | labels.isnan()).all():
        raise ValueError("labels: expected 0, 1 or NaN, found another value")
    ordered, order = predictions.sort(dim=0, descending=True)
    labels = labels.gather(0, order)
    last = torch.ones_like(ordered, dtype=torch.bool)
    last[:-1] = ordered[1:] != ordered[:-1]
    number = labels.shape[0]
    rows = torch.arange(number, device=labels.device).unsqueeze(1).expand(labels.shape)
    # for each row, the last row with an equal prediction
    ends = rows.masked_fill(~last, number).flip(0).cummin(0).values.flip(0)
    return _counts(labels == 1, ends), _counts(labels == 0, ends)


def _counts(flags: Tensor, rows: Tensor) -> Tensor:
    counts = flags.cumsum(0, dtype=torch.float64).gather(0, rows)
    return torch.nn.functional.pad(counts, (0, 0, 1, 0))


def has_both(labels: Tensor) -> Tensor:
    """Which labels have both a 0 and a 1, `[G, L] -> [L]`."""
    return (labels == 0).any(0) & (labels == 1).any(0)


def _where_defined(values: Tensor, predictions: Tensor, labels: Tensor) -> Tensor:
    unusable = (predictions.isnan() & ~labels.isnan()).any(0) | ~has_both(labels)
    return values.masked_fill(unusable, torch.nan)


def _mean(values: Tensor, defined: Tensor) -> float:
    if not defined.any():
        raise ValueError("labels: no label has both a 0 and a 1, so no score is defined")
    return values[defined].mean().item()


def _check(predictions: Tensor, labels: Tensor) -> None:
    if predictions.ndim != 2 or predictions.shape != labels.shape:
        raise ValueError(
            "predictions and labels: expected the same shape [G, L], "
            f"found {tuple(predictions.shape)} and {tuple(labels.shape)}"
        )
    if not labels.shape[0]:
        raise ValueError("predictions and labels: expected at least one molecule, found none")
