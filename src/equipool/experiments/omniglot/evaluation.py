"""Results of counting characters: metrics, and pictures of sets that were miscounted."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from equipool.experiments.omniglot.data import TEST, CharacterImages, CharacterSets
from equipool.extras import check_extras
from equipool.files import write_bytes, write_text


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


def write_results(parts: Mapping[str, Counted], data: CharacterImages, folder: Path) -> None:
    """For each part a confusion matrix, `confusion-PART.csv`, and pictures of miscounted sets: for
    each number of characters the one with the highest probability, `PART-3-taken-for-5.png`."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, counted in parts.items():
        numbers = range(1, counted.logits.shape[1] + 1)
        lines = [("true", *numbers), *zip(numbers, *counted.confusion().T.tolist(), strict=True)]
        text = "".join(",".join(map(str, line)) + "\n" for line in lines)
        write_text(folder / f"confusion-{part}.csv", text)
        for name, picture in _mistakes(counted, data):
            write_bytes(folder / f"{part}-{name}.png", png_of(picture))


def _mistakes(counted: Counted, data: CharacterImages) -> Iterator[tuple[str, Tensor]]:
    """For each number of characters, the set miscounted with the highest probability."""
    drawings = next(iter(data.pools.values())).drawings
    sure = counted.logits.softmax(-1).amax(-1) * (1 - counted.correct)
    for number in range(1, counted.logits.shape[1] + 1):
        own = torch.where(counted.sets.num_classes == number, sure, 0)
        position = int(own.argmax())
        if own[position] > 0:
            images = counted.sets.images[position]
            picture = draw_set(data.pixels[images], images // drawings)
            yield f"{number}-taken-for-{int(counted.predicted[position])}", picture


def draw_set(images: Tensor, characters: Tensor) -> Tensor:
    """Draw a set, black on white, a row for each of its characters: from `images [n, S, S]`, uint8,
    255 for ink, of `characters [n]`, to `[height, width]`, uint8.

    Example:
        >>> images = torch.zeros(3, 4, 4, dtype=torch.uint8)
        >>> draw_set(images, torch.tensor([5, 9, 5])).shape
        torch.Size([10, 10])
    """
    rows = [255 - images[characters == one] for one in characters.unique()]
    framed = [functional.pad(row, (0, 1, 0, 1), value=128) for row in rows]
    width = max(map(len, framed))
    full = [functional.pad(row, (0, 0, 0, 0, 0, width - len(row)), value=255) for row in framed]
    return torch.cat([row.movedim(0, 1).flatten(1) for row in full])


def png_of(pixels: Tensor) -> bytes:
    """Encode a picture `[height, width]`, uint8, as PNG."""
    check_extras("drawing pictures", {"report": ["PIL"]})
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(pixels.cpu().numpy()).save(content, "PNG", optimize=True)
    return content.getvalue()
