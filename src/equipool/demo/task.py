"""The paper's first experiment: the median of 100 numbers."""

from __future__ import annotations

import torch
from torch import Tensor

SET_SIZE = 100
DISTRIBUTIONS = ("uniform", "gamma", "normal")


def sample_sets(num_sets: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw sets of 100 numbers, each set from one of three distributions taken at random:
    uniform on [0, 1], gamma of shape 0.5 and scale 0.2, normal of mean 0.5 and deviation 0.4.

    Returns:
        the numbers `[num_sets, 100, 1]` and their medians `[num_sets]`, the mean of the two
        numbers in the middle.

    Example:
        >>> x, median = sample_sets(4, torch.Generator().manual_seed(0))
        >>> x.shape, median.shape
        (torch.Size([4, 100, 1]), torch.Size([4]))
    """
    kind = torch.randint(len(DISTRIBUTIONS), (num_sets,), generator=generator)
    return sample_kinds(kind, generator)


def sample_kinds(kind: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw one set for each entry of `kind [B]`, a position in `DISTRIBUTIONS`."""
    shape = (kind.shape[0], SET_SIZE)
    uniform = torch.rand(shape, generator=generator)
    normal = torch.randn(shape, generator=generator)
    # The square of a standard normal number is gamma of shape 0.5 and scale 2.
    candidates = torch.stack([uniform, 0.1 * normal.square(), 0.5 + 0.4 * normal])
    x = candidates[kind, torch.arange(kind.shape[0])]
    return x.unsqueeze(-1), medians(x)


def medians(x: Tensor) -> Tensor:
    """Median of each row, `[B, N] -> [B]`; for an even N the mean of the two in the middle."""
    ordered = x.sort(-1).values
    size = x.shape[-1]
    return ordered[:, (size - 1) // 2 : size // 2 + 1].mean(-1)
