"""What every rival is: a pooling layer with the layer's own call."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from equipool.layouts import gather_sets
from equipool.sets import Sets


class Rival(nn.Module):
    """A pooling layer that is called as `equipool.EquilibriumAggregation` is.

    The output of a set depends on the set alone, in every layout. That of an empty set is finite.

    Args:
        in_channels: size of an element.
        out_channels: size of a set's output.

    Shapes:
        `x [N, C]` with `index [N]` or `ptr [B + 1]`, `x [B, L, C]` with `mask [B, L]`, a jagged
        nested tensor `x [B, j, C]`, or one set `x [N, C]` -> `[B, out_channels]`.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        if min(in_channels, out_channels) < 1:
            raise ValueError(
                f"in_channels is {in_channels} and out_channels {out_channels}, expected 1 or more"
            )
        self.in_channels = in_channels
        self.out_channels = out_channels

    @abstractmethod
    def forward(
        self,
        x: Tensor,
        index: Tensor | None = None,
        *,
        ptr: Tensor | None = None,
        mask: Tensor | None = None,
        dim_size: int | None = None,
    ) -> Tensor:
        """Pool each set. The arguments are those of the layer."""

    def gather(
        self,
        x: Tensor,
        index: Tensor | None,
        ptr: Tensor | None,
        mask: Tensor | None,
        dim_size: int | None,
    ) -> tuple[Tensor, Sets]:
        """The elements `[N, in_channels]` in set order, and the sets."""
        x, sets = gather_sets(x, index, ptr=ptr, mask=mask, dim_size=dim_size)
        if x.shape[-1] != self.in_channels:
            raise ValueError(
                f"x has {x.shape[-1]} channels, expected in_channels = {self.in_channels}"
            )
        return x, sets

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}"


class RaggedRival(Rival):
    """A rival that takes sets of any lengths as they are. Where `dim_size`, `ptr` or a padded `x`
    says how many there are, nothing waits for the device."""

    def forward(
        self,
        x: Tensor,
        index: Tensor | None = None,
        *,
        ptr: Tensor | None = None,
        mask: Tensor | None = None,
        dim_size: int | None = None,
    ) -> Tensor:
        elements, sets = self.gather(x, index, ptr, mask, dim_size)
        return sets.real(self.pool(elements, sets))

    @abstractmethod
    def pool(self, x: Tensor, sets: Sets) -> Tensor:
        """Pool elements that are in set order: `[N, in_channels] -> [num_rows, out_channels]`."""


class DenseRival(Rival):
    """A rival that lets the elements of a set look at each other, and so needs the sets padded to
    one length.

    With a padded `x [B, L, C]` that is `L`, known beforehand. In the other layouts it is that of
    the longest set, and looking for it waits for the device.
    """

    def forward(
        self,
        x: Tensor,
        index: Tensor | None = None,
        *,
        ptr: Tensor | None = None,
        mask: Tensor | None = None,
        dim_size: int | None = None,
    ) -> Tensor:
        elements, sets = self.gather(x, index, ptr, mask, dim_size)
        if x.dim() == 3 and not x.is_nested:
            length = x.shape[1]
        else:
            length = int(sets.counts.max()) if sets.num_rows else 0
        return self.pool(*pad_sets(elements, sets, length))

    @abstractmethod
    def pool(self, x: Tensor, mask: Tensor) -> Tensor:
        """Pool padded sets, whose `x` is zero where `mask` is False:
        `[B, L, in_channels]`, `[B, L]` -> `[B, out_channels]`, `L` at least 1."""


def pad_sets(x: Tensor, sets: Sets, length: int) -> tuple[Tensor, Tensor]:
    """The elements of each set side by side, `[num_sets, L, C]`, zero behind the last, and which
    of them are real, `[num_sets, L]`; `L` is `length`, or 1 where that is 0."""
    length = max(length, 1)
    place = torch.arange(sets.num_elements, device=x.device) - sets.ptr[sets.index]
    num_places = sets.num_sets * length
    # elements of the padding row go to one place more, which is cut off
    place = torch.where(sets.index < sets.num_sets, sets.index * length + place, num_places)
    dense = x.new_zeros(num_places + 1, x.shape[-1]).index_add(0, place, x)
    counts = sets.real(sets.counts)
    mask = torch.arange(length, device=x.device) < counts.unsqueeze(-1)
    return dense[:num_places].view(sets.num_sets, length, x.shape[-1]), mask


def match_channels(channels: int, out_channels: int) -> nn.Module:
    """A linear map, or nothing where the sizes agree already."""
    return nn.Identity() if channels == out_channels else nn.Linear(channels, out_channels)
