"""Pictures of sets of characters."""

from __future__ import annotations

import io

import torch
from torch import Tensor
from torch.nn import functional

from equipool.extras import check_extras

# A colour for each character of a set; Okabe and Ito's, which the colour-blind tell apart, first.
COLORS = (
    (0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167), (230, 159, 0), (86, 180, 233),
    (0, 0, 0), (240, 228, 66), (150, 150, 150), (120, 60, 20),
)  # fmt: skip
FRAME, GAP = 3, 3  # pixels around a drawing, and between two


def draw_set(images: Tensor, characters: Tensor, columns: int = 8, scale: int = 2) -> Tensor:
    """A set as a picture: drawings of the same character next to each other, in a frame of the
    same colour, black on white.

    Args:
        images: `[n, S, S]`, uint8, 255 for ink.
        characters: which character each is of, `[n]`.
        columns: drawings in a row.
        scale: sides of a pixel.

    Returns:
        `[height, width, 3]`, uint8.

    Example:
        >>> images = torch.zeros(3, 4, 4, dtype=torch.uint8)
        >>> draw_set(images, torch.tensor([5, 9, 5]), columns=2, scale=1).shape
        torch.Size([26, 26, 3])
    """
    order = characters.argsort(stable=True)
    _, slot = characters[order].unique_consecutive(return_inverse=True)
    tiles = torch.stack(
        [
            _framed(image, COLORS[int(color) % len(COLORS)], scale)
            for image, color in zip(images[order].cpu(), slot.cpu(), strict=True)
        ]
    )
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
    """A picture `[height, width, 3]`, uint8, as PNG."""
    check_extras("drawing pictures", {"report": ["PIL"]})
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(content, "PNG", optimize=True)
    return content.getvalue()
