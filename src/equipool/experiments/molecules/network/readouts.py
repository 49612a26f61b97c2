"""How the atoms of a molecule become one vector."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from equipool.baselines.base import DenseRival
from equipool.checks import values_are_at_hand
from equipool.experiments.molecules.network.batch import MoleculeBatch


class Readout(nn.Module):
    """Pools the atoms of each molecule with a layer that is called as
    `equipool.EquilibriumAggregation` is.

    Args:
        aggregation: the layer, from C channels to K.
    """

    def __init__(self, aggregation: nn.Module) -> None:
        super().__init__()
        self.aggregation = aggregation

    @abstractmethod
    def forward(self, x: Tensor, mask: Tensor, batch: MoleculeBatch) -> Tensor:
        """Pool the atoms `x [V, C]` that `mask [V]` says: `[G, K]`."""


class FlatReadout(Readout):
    """For layers that take sets of any lengths side by side."""

    def forward(self, x: Tensor, mask: Tensor, batch: MoleculeBatch) -> Tensor:
        return self.aggregation(x, batch.molecule, mask=mask, dim_size=batch.num_molecules)


class PaddedReadout(Readout):
    """For layers that need all sets in one length. Where finding the longest molecule of the batch
    would wait for the device, that is the longest of the whole data set."""

    def forward(self, x: Tensor, mask: Tensor, batch: MoleculeBatch) -> Tensor:
        if values_are_at_hand(x):
            return self.aggregation(x, batch.molecule, mask=mask, dim_size=batch.num_molecules)
        place = torch.arange(batch.longest, device=x.device)
        first, end = batch.atom_ptr[:-2].unsqueeze(-1), batch.atom_ptr[1:-1].unsqueeze(-1)
        rows = (first + place).clamp(max=x.shape[0] - 1)
        real = (first + place < end) & mask[rows]
        padded = x.index_select(0, rows.flatten()).unflatten(0, rows.shape)
        return self.aggregation(padded, mask=real)


def make_readout(aggregation: nn.Module) -> Readout:
    """The way in which this layer is given the atoms."""
    kind = PaddedReadout if isinstance(aggregation, DenseRival) else FlatReadout
    return kind(aggregation)
