"""What a user would pool with instead, and PyTorch Geometric's version of the layer.

Everything is told the number and the sizes of the sets, so that nothing waits for the device.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from equipool.bench.cases import Batch, Case
from equipool.bench.outcome import UnavailableError
from equipool.bench.readouts import Readout

if TYPE_CHECKING:
    from torch_geometric.nn.aggr import Aggregation


class Sum(Readout):
    """The sum of the elements."""

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        return x.new_zeros(batch.num_sets, x.shape[-1]).index_add(0, batch.index, x)


class Mean(Sum):
    """The mean of the elements."""

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        counts = batch.ptr.diff().clamp(min=1).unsqueeze(-1)
        return super().forward(x, batch) / counts.to(x.dtype)


class Packaged(Readout):
    """An aggregation of PyTorch Geometric.

    Args:
        aggregation: maps the elements to one row for each set.
        dense: whether it pads the sets to the length of the longest, and wants to know that.
    """

    def __init__(self, aggregation: Aggregation, *, dense: bool = False) -> None:
        super().__init__()
        self.aggregation = aggregation
        self.dense = dense

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        if self.dense:
            return self.aggregation(
                x,
                batch.index,
                ptr=batch.ptr,
                dim_size=batch.num_sets,
                max_num_elements=max(batch.sizes),
            )
        return self.aggregation(x, batch.index, dim_size=batch.num_sets)


class Projected(Readout):
    """A readout followed by a linear map, where its own output has another size."""

    def __init__(self, readout: Readout, channels: int, out_channels: int) -> None:
        super().__init__()
        self.readout = readout
        self.linear = nn.Linear(channels, out_channels)

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        return self.linear(self.readout(x, batch))


def make_pyg_layer(case: Case) -> Readout:
    """PyTorch Geometric's own `EquilibriumAggregation`, of the same sizes. It computes something
    else, so it is timed and not compared."""
    _check_installed()
    from torch_geometric.nn.aggr import EquilibriumAggregation

    return Packaged(
        EquilibriumAggregation(
            case.in_channels,
            case.out_channels,
            num_layers=list(case.hidden),
            grad_iter=case.num_steps,
        )
    )


def make_rival(name: str, case: Case, sizes: tuple[int, ...]) -> Readout:
    """A rival by its name in `RIVALS`, with `out_channels` outputs.

    Args:
        name: the rival.
        case: the channels.
        sizes: the sets' sizes, of which PNA's scalers take an average.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        readout, channels = _build(name, case.in_channels, sizes)
        if channels == case.out_channels:
            return readout
        return Projected(readout, channels, case.out_channels)


RIVALS = {
    "sum": "sum",
    "mean": "mean",
    "attention": "attention: softmax of a learned gate (AttentionalAggregation)",
    "gmt": "multi-head attention with a learned query (GraphMultisetTransformer)",
    "set-transformer": "Set Transformer (SetTransformerAggregation)",
    "pna": "PNA: mean, min, max, std with three scalers (DegreeScalerAggregation)",
}


def _build(name: str, channels: int, sizes: tuple[int, ...]) -> tuple[Readout, int]:
    if name in ("sum", "mean"):
        return (Sum() if name == "sum" else Mean()), channels
    _check_installed()
    from torch_geometric.nn import aggr

    heads = 4 if channels % 4 == 0 else 1
    if name == "attention":
        gate = nn.Sequential(nn.Linear(channels, channels), nn.ReLU(), nn.Linear(channels, 1))
        return Packaged(aggr.AttentionalAggregation(gate)), channels
    if name == "gmt":
        return Packaged(aggr.GraphMultisetTransformer(channels, k=1, heads=heads), dense=True), (
            channels
        )
    if name == "set-transformer":
        packaged = aggr.SetTransformerAggregation(channels, heads=heads)
        return Packaged(packaged, dense=True), channels
    if name == "pna":
        scalers = ["identity", "amplification", "attenuation"]
        parts = ["mean", "min", "max", "std"]
        histogram = torch.bincount(torch.tensor(sizes))
        packaged = aggr.DegreeScalerAggregation(parts, scalers, histogram)
        return Packaged(packaged), len(parts) * len(scalers) * channels
    raise ValueError(f"the rival is {name!r}, expected one of {list(RIVALS)}")


def _check_installed() -> None:
    if find_spec("torch_geometric") is None:
        raise UnavailableError("needs PyTorch Geometric: pip install 'equipool[pyg]'")
