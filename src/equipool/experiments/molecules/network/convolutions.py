"""The convolutions of OGB's reference networks, over padded batches."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from equipool.experiments.molecules.data.graphs import BOND_CATEGORIES
from equipool.experiments.molecules.network.batch import MoleculeBatch
from equipool.experiments.molecules.network.encoders import CategoryEncoder
from equipool.experiments.molecules.network.messages import MessageAggregation
from equipool.experiments.molecules.network.norm import MaskedBatchNorm, RealRows


class Convolution(nn.Module):
    """One round of messages along the bonds: `[V, C] -> [V, C]`."""

    @abstractmethod
    def forward(
        self, x: Tensor, batch: MoleculeBatch, bond_features: Tensor, atoms: RealRows
    ) -> Tensor:
        """The atoms after a round of messages.

        Args:
            x: the atoms, `[V, C]`.
            batch: who is bound to whom.
            bond_features: the bonds' categories as `MultiHot` gives them, `[E, F]`.
            atoms: which of them are real.
        """


class GINConvolution(Convolution):
    r"""Of the graph isomorphism network,

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
    r"""Of the graph convolutional network, with the bonds and the root's own message as OGB has
    them: with $z = W x + b$ and $d_i$ one more than the atom's bonds,

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
