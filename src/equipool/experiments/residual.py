"""The paper's fully connected residual network."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


class ResidualNetwork(nn.Module):
    r"""The network of `ResNetPotential`, applied to elements without y:

    $$z_l = S_l z_{l-1} + \tanh(\mathrm{LN}(W_l z_{l-1} + b_l)),$$

    where the last layer has neither normalisation nor tanh, and $S_l$ is the identity if the sizes
    match and a learned affine map otherwise.

    The weights are initialised as torch's linear layers are, with random biases. With zero biases,
    as in the paper's potential, normalising a single number would leave only its sign.

    Args:
        sizes: size of the input, then of each layer.

    Shapes:
        `[..., sizes[0]] -> [..., sizes[-1]]`.

    Example:
        >>> ResidualNetwork((1, 256, 256, 16))(torch.rand(5, 100, 1)).shape
        torch.Size([5, 100, 16])
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        pairs = list(pairwise(sizes))
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in pairs)
        self.norms = nn.ModuleList(nn.LayerNorm(b) for _, b in pairs[:-1])
        self.skips = nn.ModuleList(nn.Identity() if a == b else nn.Linear(a, b) for a, b in pairs)

    def forward(self, z: Tensor) -> Tensor:
        for linear, norm, skip in zip(self.linears, self.norms, self.skips, strict=False):
            z = skip(z) + torch.tanh(norm(linear(z)))
        return self.skips[-1](z) + self.linears[-1](z)
