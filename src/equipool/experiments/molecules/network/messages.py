"""How the messages to an atom are aggregated."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor, nn

from equipool.aggregation import EquilibriumAggregation
from equipool.experiments.molecules.network.batch import MoleculeBatch


class MessageAggregation(nn.Module):
    """Pools the messages to each atom: `[E, C] -> [V, C]`."""

    @abstractmethod
    def forward(self, messages: Tensor, batch: MoleculeBatch) -> Tensor:
        """Pool `messages [E, C]`, one for each bond of the batch."""


class SumOfMessages(MessageAggregation):
    """The sum, as in both networks of the reference; zero for an atom without bonds."""

    def forward(self, messages: Tensor, batch: MoleculeBatch) -> Tensor:
        return batch.sum_bonds(messages)


class EquilibriumOfMessages(MessageAggregation):
    """The minimum of a learned energy of the messages to an atom; for one without bonds, the start.

    Args:
        layer: maps the messages' channels to as many.
    """

    def __init__(self, layer: EquilibriumAggregation) -> None:
        super().__init__()
        if layer.in_channels != layer.out_channels:
            raise ValueError(
                f"the layer's out_channels is {layer.out_channels}, expected {layer.in_channels}, "
                "its in_channels: atoms keep their size"
            )
        self.layer = layer

    def forward(self, messages: Tensor, batch: MoleculeBatch) -> Tensor:
        return self.layer(
            messages, batch.target, mask=batch.bond_mask, dim_size=batch.atoms.shape[0]
        )
