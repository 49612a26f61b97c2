"""Base class of the rivals: pooling layers with the same call as the layer."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor, nn

from equipool.checks import check_sizes
from equipool.sets import Sets, gather_sets


class Rival(nn.Module):
    """A pooling layer with the call of `equipool.EquilibriumAggregation`.

    The output of a set depends on that set alone, in every layout. For an empty set it is finite.

    Args:
        in_channels: size of an element.
        out_channels: size of a set's output.

    Shapes:
        `x [N, C]` with `index [N]` or `ptr [B + 1]`, `x [B, L, C]` with `mask [B, L]`, a jagged
        nested tensor `x [B, j, C]`, or one set `x [N, C]` -> `[B, out_channels]`.
    """

    takes_weights = True
    """Whether elements may have weights."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        check_sizes(in_channels=in_channels, out_channels=out_channels)
        self.in_channels = in_channels
        self.out_channels = out_channels

    def forward(
        self, x: Tensor, index: Tensor | Sets | None = None, *, ptr: Tensor | None = None,
        mask: Tensor | None = None, dim_size: int | None = None, weight: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Pool each set. The arguments are those of the layer."""
        if weight is not None and not self.takes_weights:
            raise ValueError(
                f"weight is given, expected none: {type(self).__name__} cannot weigh elements"
            )
        length = x.shape[1] if x.dim() == 3 and not x.is_nested else None
        x, sets = gather_sets(x, index, ptr=ptr, mask=mask, dim_size=dim_size, weight=weight)
        if x.shape[-1] != self.in_channels:
            raise ValueError(
                f"x has {x.shape[-1]} channels, expected in_channels = {self.in_channels}"
            )
        return self.pool_sets(x, sets, length)

    def pool_sets(self, x: Tensor, sets: Sets, length: int | None) -> Tensor:
        """Pool elements `[N, in_channels]` in set order; `length` is that of a padded batch. If
        `dim_size`, `ptr` or a padded `x` gives the number of sets, nothing waits for the device."""
        return sets.real(self.pool(x, sets))

    @abstractmethod
    def pool(self, x: Tensor, sets: Sets) -> Tensor:
        """Pool elements that are in set order: `[N, in_channels] -> [num_rows, out_channels]`."""

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}"


def match_channels(channels: int, out_channels: int) -> nn.Module:
    """A linear map, or the identity if the sizes are equal."""
    return nn.Identity() if channels == out_channels else nn.Linear(channels, out_channels)
