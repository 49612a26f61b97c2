"""The convolutions of OGB's reference networks on padded batches."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from equipool.aggregation import EquilibriumAggregation
from equipool.experiments.molecules.data.molecule_set import BOND_CATEGORIES
from equipool.experiments.molecules.network.batch import MoleculeBatch
from equipool.experiments.molecules.network.encoders import CategoryEncoder
from equipool.experiments.molecules.network.norm import MaskedBatchNorm, RealRows


class MessageAggregation(nn.Module):
    """Pools the messages to each atom: `[E, C] -> [V, C]`."""

    @abstractmethod
    def forward(self, messages: Tensor, batch: MoleculeBatch) -> Tensor:
        """Pool `messages [E, C]`, one per bond of the batch."""


class SumOfMessages(MessageAggregation):
    """The sum, as in both reference networks; zero for an atom without bonds."""

    def forward(self, messages: Tensor, batch: MoleculeBatch) -> Tensor:
        return batch.sum_bonds(messages)


class EquilibriumOfMessages(MessageAggregation):
    """Equilibrium aggregation of the messages to an atom; the start for an atom without bonds.

    Args:
        layer: keeps the number of channels.
    """

    def __init__(self, layer: EquilibriumAggregation) -> None:
        super().__init__()
        if layer.in_channels != layer.out_channels:
            raise ValueError(
                f"the layer's out_channels is {layer.out_channels}, expected {layer.in_channels} "
                "like its in_channels"
            )
        self.layer = layer

    def forward(self, messages: Tensor, batch: MoleculeBatch) -> Tensor:
        return self.layer(
            messages, batch.target, mask=batch.bond_mask, dim_size=batch.atoms.shape[0]
        )


class Convolution(nn.Module):
    """One round of message passing along the bonds: `[V, C] -> [V, C]`."""

    @abstractmethod
    def forward(
        self, x: Tensor, batch: MoleculeBatch, bond_features: Tensor, atoms: RealRows
    ) -> Tensor:
        """The atoms after one round of messages.

        Args:
            x: the atoms, `[V, C]`.
            batch: the bonds.
            bond_features: `MultiHot` features of the bonds, `[E, F]`.
            atoms: which atoms are real.
        """


class GINConvolution(Convolution):
    r"""The convolution of the graph isomorphism network,

    $$x_i' = \mathrm{MLP}\Bigl((1 + \epsilon) \, x_i
    + \bigoplus_{j \to i} \mathrm{relu}(x_j + e_{ji})\Bigr),$$

    where $e$ embeds the bond, the MLP has one hidden layer of `2 * channels` with batch
    normalisation, and the messages are pooled by `aggregation`.

    Args:
        channels: of the atoms.
        aggregation: of the messages.
    """

    def __init__(self, channels: int, aggregation: MessageAggregation) -> None:
        super().__init__()
        self.bond_encoder = CategoryEncoder(BOND_CATEGORIES, channels)
        self.aggregation = aggregation
        self.epsilon = nn.Parameter(torch.zeros(1))
        self.first = nn.Linear(channels, 2 * channels)
        self.norm = MaskedBatchNorm(2 * channels)
        self.second = nn.Linear(2 * channels, channels)

    def forward(
        self, x: Tensor, batch: MoleculeBatch, bond_features: Tensor, atoms: RealRows
    ) -> Tensor:
        messages = torch.relu(batch.at_sources(x) + self.bond_encoder(bond_features))
        pooled = self.aggregation(messages, batch)
        x = torch.addcmul(x + pooled, x, self.epsilon).to(x.dtype)
        return self.second(torch.relu(self.norm(self.first(x), atoms)))


class GCNConvolution(Convolution):
    r"""The convolution of the graph convolutional network with OGB's bond features and root
    message: with $z = W x + b$ and $d_i$ the atom's number of bonds plus one,

    $$x_i' = \bigoplus_{j \to i} \frac{\mathrm{relu}(z_j + e_{ji})}{\sqrt{d_i d_j}}
    + \frac{\mathrm{relu}(z_i + r)}{d_i},$$

    where $e$ embeds the bond, $r$ is learned, and the messages are pooled by `aggregation`.

    Args:
        channels: of the atoms.
        aggregation: of the messages.
    """

    def __init__(self, channels: int, aggregation: MessageAggregation) -> None:
        super().__init__()
        self.bond_encoder = CategoryEncoder(BOND_CATEGORIES, channels)
        self.aggregation = aggregation
        self.linear = nn.Linear(channels, channels)
        self.root = nn.Parameter(torch.randn(1, channels))

    def forward(
        self, x: Tensor, batch: MoleculeBatch, bond_features: Tensor, atoms: RealRows
    ) -> Tensor:
        x = self.linear(x)
        wide = torch.promote_types(x.dtype, torch.float32)
        degree = (batch.bond_ptr.diff() + 1).unsqueeze(-1).to(wide)
        root = degree.rsqrt()
        norm = root.index_select(0, batch.source) * root.index_select(0, batch.target)
        messages = norm * torch.relu(batch.at_sources(x) + self.bond_encoder(bond_features))
        pooled = self.aggregation(messages.to(x.dtype), batch)
        return (pooled + torch.relu(x + self.root) / degree).to(x.dtype)


CONVOLUTIONS: dict[str, type[GINConvolution] | type[GCNConvolution]] = {
    "gin": GINConvolution,
    "gcn": GCNConvolution,
}
