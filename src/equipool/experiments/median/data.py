"""Random sets of numbers and their medians, distributed as in the paper's appendix."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from equipool.experiments.data import generator_for

DISTRIBUTIONS = ("uniform", "gamma", "normal")


def sample_sets(
    shape: tuple[int, ...], set_size: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw sets of numbers, each from a distribution chosen at random.

    Returns:
        The numbers, `[*shape, set_size]`, and the positions of the sets' distributions in
        `DISTRIBUTIONS`, `[*shape]`, on the generator's device.

    Example:
        >>> x, kind = sample_sets((4,), 100, torch.Generator().manual_seed(0))
        >>> x.shape, kind.shape
        (torch.Size([4, 100]), torch.Size([4]))
    """
    kind = torch.randint(len(DISTRIBUTIONS), shape, generator=generator, device=generator.device)
    return sample_kinds(kind, set_size, generator), kind


def sample_kinds(kind: Tensor, set_size: int, generator: torch.Generator) -> Tensor:
    """Draw `set_size` numbers for each entry of `kind [...]`, a position in `DISTRIBUTIONS`:
    uniform on [0, 1], gamma of shape 0.5 and scale 0.2, or normal of mean 0.5 and deviation 0.4.

    Returns:
        `[..., set_size]`, on the device of `kind` and the generator.
    """
    shape = (*kind.shape, set_size)
    uniform = torch.rand(shape, generator=generator, device=kind.device)
    normal = torch.randn(shape, generator=generator, device=kind.device)
    # The square of a standard normal number is gamma of shape 0.5 and scale 2.
    kind = kind.unsqueeze(-1)
    others = torch.where(kind == 1, 0.1 * normal.square(), 0.5 + 0.4 * normal)
    return torch.where(kind == 0, uniform, others)


def medians(x: Tensor) -> Tensor:
    """Median of the last dimension, `[..., N] -> [...]`; for an even N the mean of the two middle
    numbers.

    Example:
        >>> medians(torch.tensor([[4.0, 1.0, 2.0, 3.0]]))
        tensor([2.5000])
    """
    ordered = x.sort(-1).values
    size = x.shape[-1]
    return ordered[..., (size - 1) // 2 : size // 2 + 1].mean(-1)


@lru_cache(maxsize=1)
def held_out_sets(
    num_sets: int, set_size: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """The sets for evaluation, `[num_sets, set_size]`, their medians and their distributions,
    `[num_sets]`: the same on every device and for every seed."""
    generator = generator_for(torch.device("cpu"), "median", "held out")
    x, kind = sample_sets((num_sets,), set_size, generator)
    return x.to(device), medians(x).to(device), kind.to(device)
