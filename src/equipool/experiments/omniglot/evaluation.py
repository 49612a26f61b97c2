"""Results of counting characters: metrics, tables, and pictures of sets that were miscounted."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from equipool.experiments.omniglot.data import TEST, CharacterImages, CharacterSets
from equipool.extras import check_extras
from equipool.training import Cell, Examination, Gallery, Picture, Table

# One colour per character of a set; first Okabe and Ito's, distinct for colour-blind readers.
COLORS = (
    (0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167), (230, 159, 0), (86, 180, 233),
    (0, 0, 0), (240, 228, 66), (150, 150, 150), (120, 60, 20),
)  # fmt: skip
FRAME, GAP = 3, 3  # pixels around a drawing, and between two


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


def examination_of(parts: Mapping[str, Counted], data: CharacterImages) -> Examination:
    """Accuracy by number of characters, the confusion matrix of each part, and miscounted sets."""
    tables = (_accuracy_table(parts), *(_confusion_table(*part) for part in parts.items()))
    found = (Gallery(mistakes_title(part), _mistakes(own, data)) for part, own in parts.items())
    return Examination(tables, tuple(gallery for gallery in found if gallery.pictures))


def confusion_title(part: str) -> str:
    """Title of the confusion matrix of a part, `"validation"` or `"test"`."""
    return f"What is said of sets of {part} characters"


def mistakes_title(part: str) -> str:
    """Title of the pictures of miscounted sets of a part."""
    return f"Sets of {part} characters that are counted wrong"


def _accuracy_table(parts: Mapping[str, Counted]) -> Table:
    numbers = _numbers(next(iter(parts.values())))
    rows = []
    for part, counted in parts.items():
        shares = _by_count(counted)
        cells: list[Cell] = [shares.get(number, "-") for number in numbers]
        rows.append((part, *cells, counted.correct.mean().item()))
    headings = ("characters", *map(str, numbers), "all")
    return Table("Accuracy by the number of characters", headings, tuple(rows))


def _confusion_table(part: str, counted: Counted) -> Table:
    numbers = [str(number) for number in _numbers(counted)]
    rows = []
    for number, row in zip(numbers, counted.confusion().tolist(), strict=True):
        rows.append((number, *(sets / max(sum(row), 1) for sets in row), sum(row)))
    return Table(confusion_title(part), ("true \\ said", *numbers, "sets"), tuple(rows))


def _numbers(counted: Counted) -> range:
    """The possible answers."""
    return range(1, counted.logits.shape[1] + 1)


def _mistakes(counted: Counted, data: CharacterImages) -> tuple[Picture, ...]:
    """For each number of characters, the set miscounted with the highest probability."""
    drawings = next(iter(data.pools.values())).drawings
    sure = counted.logits.softmax(-1).amax(-1) * (1 - counted.correct)
    pictures = []
    for number in _numbers(counted):
        own = torch.where(counted.sets.num_classes == number, sure, 0)
        position = int(own.argmax())
        if own[position] > 0:
            said, probability = int(counted.predicted[position]), float(own[position])
            caption = f"{number} taken for {said} (probability {probability:.2f})"
            images = counted.sets.images[position]
            png = png_of(draw_set(data.pixels[images], images // drawings))
            pictures.append(Picture(caption, png))
    return tuple(pictures)


def draw_set(images: Tensor, characters: Tensor, columns: int = 8, scale: int = 2) -> Tensor:
    """Draw a set: black on white, drawings of the same character side by side in frames of the same
    colour. From `images [n, S, S]`, uint8, 255 for ink, of `characters [n]`, to
    `[height, width, 3]`, uint8, with `columns` drawings per row, magnified by `scale`.

    Example:
        >>> images = torch.zeros(3, 4, 4, dtype=torch.uint8)
        >>> draw_set(images, torch.tensor([5, 9, 5]), columns=2, scale=1).shape
        torch.Size([26, 26, 3])
    """
    order = characters.argsort(stable=True)
    _, slot = characters[order].unique_consecutive(return_inverse=True)
    pairs = zip(images[order].cpu(), slot.tolist(), strict=True)
    framed = [_framed(image, COLORS[color % len(COLORS)], scale) for image, color in pairs]
    tiles = torch.stack(framed)
    missing = -len(tiles) % columns
    tiles = functional.pad(tiles, (0, 0, 0, 0, 0, 0, 0, missing), value=255)
    rows = tiles.unflatten(0, (-1, columns))  # [rows, columns, height, width, 3]
    height, width = tiles.shape[1:3]
    return rows.transpose(1, 2).reshape(len(rows) * height, columns * width, 3)


def _framed(image: Tensor, color: tuple[int, int, int], scale: int) -> Tensor:
    ink = image.repeat_interleave(scale, 0).repeat_interleave(scale, 1)
    side = len(ink) + 2 * FRAME
    tile = torch.tensor(color, dtype=torch.uint8).repeat(side, side, 1)
    tile[FRAME:-FRAME, FRAME:-FRAME] = (255 - ink).unsqueeze(-1)
    return functional.pad(tile, (0, 0, 0, GAP, 0, GAP), value=255)


def png_of(pixels: Tensor) -> bytes:
    """Encode a picture `[height, width, 3]`, uint8, as PNG."""
    check_extras("drawing pictures", {"report": ["PIL"]})
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(content, "PNG", optimize=True)
    return content.getvalue()
