"""The layer in its implementations, all with the same weights, behind one call."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from equipool.aggregation import EquilibriumAggregation
from equipool.bench.cases import Batch, Case
from equipool.potentials.resnet import ResNetPotential
from equipool.reference import aggregate, read_layer


class Readout(nn.Module):
    """Pools the sets of a batch whose elements are `x [N, C]` -> `[B, K]`."""

    @abstractmethod
    def forward(self, x: Tensor, batch: Batch) -> Tensor: ...


class Layer(Readout):
    """`equipool.EquilibriumAggregation`."""

    def __init__(self, layer: EquilibriumAggregation) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        return self.layer(x, ptr=batch.ptr)


class CompiledLayer(Readout):
    """The layer under `torch.compile`, for the batch's own sizes."""

    def __init__(self, layer: EquilibriumAggregation) -> None:
        super().__init__()
        self.layer = layer
        # not as a module, which would list every parameter twice
        self._compiled: tuple[Callable[..., Tensor]] = (
            torch.compile(layer, fullgraph=True, dynamic=False),
        )

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        return self._compiled[0](x, ptr=batch.ptr)


class OneByOne(Readout):
    """`equipool.reference`: one set at a time."""

    def __init__(self, layer: EquilibriumAggregation) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        return aggregate(x.split(list(batch.sizes)), read_layer(self.layer))[0]


def make_layer(case: Case, *, factored: bool = True, seed: int = 0) -> EquilibriumAggregation:
    """The layer of a case on the CPU; the same weights for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        potential = ResNetPotential(
            case.in_channels, case.out_channels, case.hidden, factored=factored
        )
    return EquilibriumAggregation(
        case.in_channels, case.out_channels, potential=potential, num_steps=case.num_steps
    )
