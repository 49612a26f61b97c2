"""The paper's first experiment: the median of 100 numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from equipool.experiments.median import data as number_sets
from equipool.experiments.median.data import DISTRIBUTIONS, medians

__all__ = ["DISTRIBUTIONS", "SET_SIZE", "sample_kinds", "sample_sets"]

SET_SIZE = 100


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
    x = number_sets.sample_kinds(kind, SET_SIZE, generator)
    return x.unsqueeze(-1), medians(x)
