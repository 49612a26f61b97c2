"""Sets of numbers and their medians, as the paper's appendix draws them."""

from __future__ import annotations

import torch
from torch import Tensor

DISTRIBUTIONS = ("uniform", "gamma", "normal")


def sample_kinds(kind: Tensor, set_size: int, generator: torch.Generator) -> Tensor:
    """Draw `set_size` numbers for each entry of `kind [...]`, a position in `DISTRIBUTIONS`:
    uniform on [0, 1], gamma of shape 0.5 and scale 0.2, or normal of mean 0.5 and deviation 0.4.

    Returns:
        `[..., set_size]`, on the device of `kind` and of the generator.
    """
    shape = (*kind.shape, set_size)
    uniform = torch.rand(shape, generator=generator, device=kind.device)
    normal = torch.randn(shape, generator=generator, device=kind.device)
    # The square of a standard normal number is gamma of shape 0.5 and scale 2.
    kind = kind.unsqueeze(-1)
    others = torch.where(kind == 1, 0.1 * normal.square(), 0.5 + 0.4 * normal)
    return torch.where(kind == 0, uniform, others)


def medians(x: Tensor) -> Tensor:
    """Median of the last dimension, `[..., N] -> [...]`; for an even N the mean of the two numbers
    in the middle.

    Example:
        >>> medians(torch.tensor([[4.0, 1.0, 2.0, 3.0]]))
        tensor([2.5000])
    """
    ordered = x.sort(-1).values
    size = x.shape[-1]
    return ordered[..., (size - 1) // 2 : size // 2 + 1].mean(-1)
