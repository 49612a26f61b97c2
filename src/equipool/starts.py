"""Where the search for the minimum begins."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from equipool.sets import Sets


class Start(nn.Module):
    """The first `y` of each set, `[num_rows, K]`.

    A subclass must provide `forward`. If it has an attribute `out_channels`, the layer compares it
    with its own.
    """

    reads_elements = True
    """Whether the starts depend on the elements. A subclass that only uses their dtype, device and
    sets should say False: where not all elements are available, other starts are rejected."""

    @property
    def capturable(self) -> bool:
        """Whether the starts can be recorded in a CUDA graph, which draws nothing at random."""
        return True

    @abstractmethod
    def forward(self, x: Tensor, sets: Sets) -> Tensor:
        """The starts of a batch whose elements `x [N, C]` are in set order."""


class ZeroStart(Start):
    """The paper's start: the zero vector. The default of a layer."""

    reads_elements = False

    def __init__(self, out_channels: int) -> None:
        super().__init__()
        self.out_channels = out_channels

    def forward(self, x: Tensor, sets: Sets) -> Tensor:
        return x.new_zeros(sets.num_rows, self.out_channels)

    def extra_repr(self) -> str:
        return f"{self.out_channels}"


class LearnedStart(Start):
    """One learned vector from which every set starts.

    Args:
        out_channels: size of the output.
        value: the initial value of every component.
        learnable: whether the vector is learned.
    """

    reads_elements = False

    def __init__(self, out_channels: int, value: float = 0.0, learnable: bool = True) -> None:
        super().__init__()
        self.out_channels = out_channels
        self.value = value
        y = torch.full((out_channels,), float(value))
        self.y = nn.Parameter(y, requires_grad=learnable)

    def reset_parameters(self) -> None:
        nn.init.constant_(self.y, self.value)

    def forward(self, x: Tensor, sets: Sets) -> Tensor:
        return self.y.to(x.dtype).expand(sets.num_rows, -1)

    def extra_repr(self) -> str:
        return f"{self.out_channels}, value={self.value}"


class NormalStart(Start):
    """In training a random start for every set and call, in evaluation the zero vector.

    A layer trained this way learns to reach the same output from anywhere. Combined with
    `RandomSteps`, this is how path independence is trained. The draws come from torch's generator
    of the device.

    Args:
        out_channels: size of the output.
        std: standard deviation of every component.
    """

    reads_elements = False

    def __init__(self, out_channels: int, std: float = 1.0) -> None:
        super().__init__()
        if not 0 <= std < float("inf"):
            raise ValueError(f"std is {std!r}, expected a number of 0 or more")
        self.out_channels = out_channels
        self.std = std

    @property
    def capturable(self) -> bool:
        return not self.training

    def forward(self, x: Tensor, sets: Sets) -> Tensor:
        y = x.new_zeros(sets.num_rows, self.out_channels)
        return self.std * torch.randn_like(y) if self.training else y

    def extra_repr(self) -> str:
        return f"{self.out_channels}, std={self.std}"


def check_start(start: Start, reason: str) -> None:
    """Reject a start that may read elements where not all are available."""
    if start.reads_elements:
        raise ValueError(
            f"the start is {type(start).__name__}, which may read the elements, but {reason}: use "
            "another one, or set its attribute reads_elements = False if it does not read them"
        )
