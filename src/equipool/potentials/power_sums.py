"""The potential in the proof that Equilibrium Aggregation is universal."""

from __future__ import annotations

import torch
from torch import Tensor

from equipool.potentials.base import Potential


class PowerSums(Potential):
    r"""The potential of the paper's Theorem 1, for sets of `set_size` $= N$ numbers:

    $$F(x, y) = \sum_{k=1}^{M} \left(\frac{y_k}{N} - x^k\right)^2,
      \qquad y_k = \sum_i x_i^k \text{ at the minimum.}$$

    With $M = N$ these power sums determine the set, and with $M < N$ they do not.

    Of a set that has another size than `set_size`, the minimum is `set_size` times the mean of the
    powers, which is not their sum.

    Args:
        num_powers: $M$, the size of the output.
        set_size: $N$, the number of elements of every set.

    Shapes:
        `x [N, 1]`, `y [N, num_powers]` -> `[N]`.

    Example:
        >>> layer = equipool.closed_form.power_sums(set_size=2)
        >>> layer(torch.tensor([[2.0], [3.0]]))
        tensor([[ 5., 13.]])
    """

    def __init__(self, num_powers: int, set_size: int) -> None:
        super().__init__()
        if min(num_powers, set_size) < 1:
            raise ValueError(
                f"num_powers is {num_powers} and set_size {set_size}, expected 1 or more"
            )
        self.in_channels = 1
        self.out_channels = num_powers
        self.set_size = set_size

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        exponents = torch.arange(1, self.out_channels + 1, dtype=x.dtype, device=x.device)
        return (y / self.set_size - x**exponents).square().sum(-1)

    def extra_repr(self) -> str:
        return f"{self.out_channels}, {self.set_size}"
