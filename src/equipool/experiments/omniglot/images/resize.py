"""Smaller images by averages over areas."""

from __future__ import annotations

import torch
from torch import Tensor

IMAGES_AT_ONCE = 4096


def shrink(images: Tensor, size: int) -> Tensor:
    r"""Images of `size` times `size` pixels, each pixel the average over the area it covers,

    $$Y = R X R^\top,$$

    where $R_{ab}$ is the share of new pixel $a$ that lies in old pixel $b$, along one side.

    Args:
        images: `[..., S, S]`, uint8 with 1 for ink.
        size: no larger than `S`.

    Returns:
        `[..., size, size]`, uint8: the share of ink, 255 where it is all.

    Example:
        >>> shrink(torch.tensor([[0, 1, 1], [0, 1, 1], [0, 0, 0]], dtype=torch.uint8), 1)
        tensor([[113]], dtype=torch.uint8)
    """
    source = images.shape[-1]
    if not 1 <= size <= source:
        raise ValueError(f"size is {size}, expected 1 to {source}, that of the images")
    weights = area_weights(source, size)
    flat = images.reshape(-1, source, source)
    shrunk = [
        (weights @ part.float() @ weights.T).mul_(255).round_().to(torch.uint8)
        for part in flat.split(IMAGES_AT_ONCE)
    ]
    return torch.cat(shrunk).reshape(*images.shape[:-2], size, size)


def area_weights(source: int, target: int) -> Tensor:
    """The share of each of `target` equal intervals that lies in each of `source`, which divide the
    same line: `[target, source]`, rows that sum to 1.

    Example:
        >>> area_weights(3, 2)
        tensor([[0.6667, 0.3333, 0.0000],
                [0.0000, 0.3333, 0.6667]])
    """
    new = torch.arange(target + 1, dtype=torch.float64) * (source / target)
    old = torch.arange(source + 1, dtype=torch.float64)
    low = torch.maximum(new[:-1, None], old[None, :-1])
    high = torch.minimum(new[1:, None], old[None, 1:])
    return ((high - low).clamp(min=0) * (target / source)).float()
