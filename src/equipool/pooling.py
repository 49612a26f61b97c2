"""A pooling ready to use, made of the convex equilibrium."""

from __future__ import annotations

from typing import SupportsIndex

import torch
from torch import Tensor, nn

from equipool.aggregation import EquilibriumAggregation
from equipool.checks import check_sizes
from equipool.potentials.base import wide
from equipool.potentials.location import LocationPotential
from equipool.sets import Sets, gather_sets

USUAL_LOG = 4.0  # log2(N + 1) of a set whose copies have the scale of the outputs themselves
TINY = 1e-5  # under the root of the deviation, whose slope is infinite at zero


class LocationPooling(nn.Module):
    r"""The exact minimum of learned penalties of each channel, and what is read from it:

    - `asymmetries` locations of each channel of x, by a `LocationPotential` whose features are the
      channels themselves: at first below, in the middle and above,
    - the root of the mean squared distance from the middle one,
    - copies of these times $\log_2(N + 1) / 4$ and $4 / \log_2(N + 1)$, and $\log_2(N + 1)$,

    followed by a linear map. It contains principal neighbourhood aggregation (PNA), whose mean,
    minimum, maximum and deviation are points of the family or its limits.

    Args:
        in_channels: size of an element.
        out_channels: size of a set's output.
        asymmetries: locations of each channel.
        heads: learned weights of an element, shared by the channels; 0 for none.
        deviation: whether to add the deviation.
        scalers: whether to add the scaled copies and the logarithm of the size.

    Shapes:
        Those of `EquilibriumAggregation`.

    Example:
        >>> pool = equipool.LocationPooling(3, 8)
        >>> pool(torch.randn(5, 3), torch.tensor([0, 1, 0, 0, 1])).shape
        torch.Size([2, 8])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        asymmetries: int = 3,
        heads: int = 4,
        deviation: bool = True,
        scalers: bool = True,
    ) -> None:
        super().__init__()
        check_sizes(in_channels=in_channels, out_channels=out_channels, asymmetries=asymmetries)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.asymmetries = asymmetries
        self.deviation = deviation
        self.scalers = scalers
        locations = in_channels * asymmetries
        potential = LocationPotential(in_channels, locations, asymmetries, heads, nn.Identity())
        self.layer = EquilibriumAggregation(in_channels, locations, potential=potential)
        read = locations + deviation * in_channels
        self.linear = nn.Linear(3 * read + 1 if scalers else read, out_channels)

    def reset_parameters(self) -> None:
        """Draw the linear map again and reset all others to their initial values."""
        self.layer.reset_parameters()
        self.linear.reset_parameters()

    def forward(
        self, x: Tensor, index: Tensor | Sets | None = None, *, ptr: Tensor | None = None,
        mask: Tensor | None = None, dim_size: SupportsIndex | None = None,
        weight: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Pool each set. Takes the arguments of `EquilibriumAggregation`."""
        x, sets = gather_sets(x, index, ptr=ptr, mask=mask, dim_size=dim_size, weight=weight)
        y = wide(self.layer(x, sets))
        total = sets.real(sets.totals).to(y.dtype).unsqueeze(-1)
        if self.deviation:
            middle = y.unflatten(-1, (-1, self.asymmetries))[..., self.asymmetries // 2]
            squares = (wide(x) - sets.spread(sets.padded_rows(middle))).square()
            mean = sets.real(sets.sum(squares)) / torch.where(total > 0, total, 1)
            y = torch.cat([y, (mean + TINY).sqrt()], -1)
        if self.scalers:
            log = torch.log2(total + 1)
            scale = log.clamp(min=1) / USUAL_LOG  # 1 is that of a single element
            y = torch.cat([y, y * scale, y / scale, log], -1)
        return self.linear(y.to(x.dtype))

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}"
