"""What came of counting characters: metrics, tables, and sets that were counted wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from equipool.experiments.omniglot.character_images import TEST, CharacterImages
from equipool.experiments.omniglot.character_pictures import draw_set, png_of
from equipool.experiments.omniglot.character_sets import CharacterSets
from equipool.training.artifacts import Cell, Examination, Gallery, Picture, Table


class Counted(NamedTuple):
    """Sets, and the logits `[n, max_classes]` of how many characters each has."""

    sets: CharacterSets
    logits: Tensor

    @property
    def said(self) -> Tensor:
        """The most likely numbers, `[n]`."""
        return self.logits.argmax(-1) + 1

    @property
    def right(self) -> Tensor:
        """1 where that is the number, else 0: `[n]`."""
        return (self.said == self.sets.num_classes).double()

    def confusion(self) -> Tensor:
        """How many sets of `i + 1` characters were said to have `j + 1`, `[i, j]`."""
        size = self.logits.shape[1]
        pairs = (self.sets.num_classes - 1) * size + self.said - 1
        return torch.bincount(pairs, minlength=size * size).view(size, size)


def metrics_of(parts: Mapping[str, Counted]) -> dict[str, float]:
    """Of each part the share of right answers and the cross entropy; of the test part also the
    share of right answers on sets of each number of characters that occurs."""
    metrics = {}
    for part, counted in parts.items():
        metrics[f"{part}_accuracy"] = counted.right.mean().item()
        entropy = functional.cross_entropy(counted.logits, counted.sets.num_classes - 1)
        metrics[f"{part}_cross_entropy"] = entropy.item()
    for number, share in _by_count(parts[TEST]).items():
        metrics[f"{TEST}_accuracy_{number}"] = share
    return metrics


def _by_count(counted: Counted) -> dict[int, float]:
    """The share of right answers, by the true number of characters."""
    rows = enumerate(counted.confusion().tolist())
    return {position + 1: row[position] / sum(row) for position, row in rows if any(row)}


def examination_of(parts: Mapping[str, Counted], data: CharacterImages) -> Examination:
    """Right answers by number of characters, the confusion matrix of each part, and sets that were
    counted wrong."""
    confusions = [_confusion_table(part, counted) for part, counted in parts.items()]
    galleries = [
        Gallery(mistakes_title(part), _mistakes(counted, data)) for part, counted in parts.items()
    ]
    return Examination(
        (_accuracy_table(parts), *confusions),
        tuple(gallery for gallery in galleries if gallery.pictures),
    )


def confusion_title(part: str) -> str:
    """Of the table of what is said of a part, `"validation"` or `"test"`."""
    return f"What is said of sets of {part} characters"


def mistakes_title(part: str) -> str:
    """Of the pictures of a part."""
    return f"Sets of {part} characters that are counted wrong"


def _accuracy_table(parts: Mapping[str, Counted]) -> Table:
    numbers = _numbers(next(iter(parts.values())))
    rows = []
    for part, counted in parts.items():
        shares = _by_count(counted)
        cells: list[Cell] = [shares.get(number, "-") for number in numbers]
        rows.append((part, *cells, counted.right.mean().item()))
    headings = ("characters", *map(str, numbers), "all")
    return Table("Right answers, by the number of characters", headings, tuple(rows))


def _confusion_table(part: str, counted: Counted) -> Table:
    numbers = _numbers(counted)
    rows = []
    for number, row in zip(numbers, counted.confusion().tolist(), strict=True):
        shares = [sets / max(sum(row), 1) for sets in row]
        rows.append((str(number), *shares, sum(row)))
    headings = ("true \\ said", *map(str, numbers), "sets")
    return Table(confusion_title(part), headings, tuple(rows))


def _numbers(counted: Counted) -> range:
    """The answers that there are."""
    return range(1, counted.logits.shape[1] + 1)


def _mistakes(counted: Counted, data: CharacterImages) -> tuple[Picture, ...]:
    """Of the sets of each number of characters, the one that is most surely counted wrong."""
    sure = counted.logits.softmax(-1).amax(-1) * (1 - counted.right)
    pictures = []
    for number in _numbers(counted):
        own = torch.where(counted.sets.num_classes == number, sure, 0)
        position = int(own.argmax())
        if own[position] > 0:
            said, probability = int(counted.said[position]), float(own[position])
            caption = f"{number} taken for {said} (probability {probability:.2f})"
            pictures.append(Picture(caption, _picture(counted.sets.images[position], data)))
    return tuple(pictures)


def _picture(images: Tensor, data: CharacterImages) -> bytes:
    return png_of(draw_set(data.pixels[images], images // next(iter(data.pools.values())).drawings))
