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
