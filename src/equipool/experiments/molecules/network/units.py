"""From standard deviations to a label's own units."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Units(nn.Module):
    r"""$y = \mu + \sigma z$ for each label, computed in float32 at least: a network's outputs $z$
    are of the size of 1, whatever the labels are measured in.

    Args:
        mean: $\mu$ of each label, `[L]`.
        deviation: $\sigma$ of each label, `[L]`.

    Example:
        >>> Units(torch.tensor([100.0]), torch.tensor([5.0]))(torch.tensor([[2.0]]))
        tensor([[110.]])
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean.clone())
        self.register_buffer("deviation", deviation.clone())

    def forward(self, z: Tensor) -> Tensor:
        wide = z.to(torch.promote_types(z.dtype, torch.float32))
        return torch.addcmul(self.mean, wide, self.deviation)
