"""Results of counting characters: metrics and confusion matrices."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from equipool.experiments.omniglot.data import TEST, CharacterSets
from equipool.files import write_text


class Counted(NamedTuple):
    """Sets, and the network's logits `[n, max_classes]` for the number of characters in each."""

    sets: CharacterSets
    logits: Tensor

    @property
    def predicted(self) -> Tensor:
        """The most likely number of characters, `[n]`."""
        return self.logits.argmax(-1) + 1

    @property
    def correct(self) -> Tensor:
        """1 where the prediction is correct, else 0: `[n]`."""
        return (self.predicted == self.sets.num_classes).double()

    def confusion(self) -> Tensor:
        """How many sets of `i + 1` characters were predicted to have `j + 1`, `[i, j]`."""
        size = self.logits.shape[1]
        pairs = (self.sets.num_classes - 1) * size + self.predicted - 1
        return torch.bincount(pairs, minlength=size * size).view(size, size)


def metrics_of(parts: Mapping[str, Counted]) -> dict[str, float]:
    """Accuracy and cross entropy for each part; for the test part also the accuracy for each true
    number of characters."""
    metrics = {}
    for part, counted in parts.items():
        metrics[f"{part}_accuracy"] = counted.correct.mean().item()
        entropy = functional.cross_entropy(counted.logits, counted.sets.num_classes - 1)
        metrics[f"{part}_cross_entropy"] = entropy.item()
    for number, share in _by_count(parts[TEST]).items():
        metrics[f"{TEST}_accuracy_{number}"] = share
    return metrics


def _by_count(counted: Counted) -> dict[int, float]:
    """Accuracy by the true number of characters."""
    rows = enumerate(counted.confusion().tolist())
    return {position + 1: row[position] / sum(row) for position, row in rows if any(row)}


def write_results(parts: Mapping[str, Counted], folder: Path) -> None:
    """A confusion matrix for each part, `confusion-PART.csv`."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, counted in parts.items():
        numbers = range(1, counted.logits.shape[1] + 1)
        lines = [("true", *numbers), *zip(numbers, *counted.confusion().T.tolist(), strict=True)]
        text = "".join(",".join(map(str, line)) + "\n" for line in lines)
        write_text(folder / f"confusion-{part}.csv", text)
