"""Layers of OGB's reference networks on padded batches: encodings, convolutions, virtual node."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from equipool.aggregation import EquilibriumAggregation
from equipool.experiments.molecules.data.molecule_set import BOND_CATEGORIES
from equipool.experiments.molecules.network.batch import MoleculeBatch, elements_of
from equipool.experiments.molecules.network.norm import MaskedBatchNorm, RealRows
from equipool.potentials.base import wide


class MultiHot(nn.Module):
    """Concatenated one-hot encodings of categorical features: `[N, F]` integers, each from 0 to its
    feature's size - 1, give `[N, sum(sizes)]`, float32.

    Example:
        >>> MultiHot((2, 3))(torch.tensor([[1, 0]]))
        tensor([[0., 1., 1., 0., 0.]])
    """

    first: Tensor

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.size = sum(sizes)
        first = torch.tensor([0, *accumulate(sizes[:-1])])
        self.register_buffer("first", first, persistent=False)

    def forward(self, categories: Tensor) -> Tensor:
        zeros = torch.zeros(categories.shape[0], self.size, device=categories.device)
        return zeros.scatter(1, categories + self.first, 1.0)


class CategoryEncoder(nn.Module):
    """The sum of an embedding of each feature, computed as a matrix product with their `MultiHot`
    (`[N, sum(sizes)] -> [N, channels]`): the derivative is a product too, and deterministic, unlike
    that of a lookup.

    Example:
        >>> features = MultiHot((2, 3))(torch.tensor([[1, 0]]))
        >>> CategoryEncoder((2, 3), 8)(features).shape
        torch.Size([1, 8])
    """

    def __init__(self, sizes: Sequence[int], channels: int) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        self.weight = nn.Parameter(torch.empty(sum(sizes), channels))
        for table in self.tables():
            nn.init.xavier_uniform_(table)

    def tables(self) -> tuple[Tensor, ...]:
        """The embedding table of each feature, `[size, channels]`, as views of the weight."""
        return self.weight.detach().split(self.sizes)

    def forward(self, features: Tensor) -> Tensor:
        return features.to(self.weight.dtype) @ self.weight


class Units(nn.Module):
    r"""$y = \mu + \sigma z$ for each label, computed in float32 or wider, so that the network's
    outputs $z$ are of order 1 whatever the labels' units.

    Example:
        >>> Units(torch.tensor([100.0]), torch.tensor([5.0]))(torch.tensor([[2.0]]))
        tensor([[110.]])
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean.clone())
        self.register_buffer("deviation", deviation.clone())

    def forward(self, z: Tensor) -> Tensor:
        return torch.addcmul(self.mean, wide(z), self.deviation)


class SumOfMessages(nn.Module):
    """The sum of the messages to each atom, `[E, C] -> [V, C]`, as in both reference networks; zero
    for an atom without bonds."""

    def forward(self, messages: Tensor, batch: MoleculeBatch) -> Tensor:
        return batch.sum_bonds(messages)


class EquilibriumOfMessages(nn.Module):
    """Equilibrium aggregation of the messages to an atom; the start for an atom without bonds."""

    def __init__(self, layer: EquilibriumAggregation) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, messages: Tensor, batch: MoleculeBatch) -> Tensor:
        sets = batch.bond_sets
        return self.layer(elements_of(sets, messages), sets)


class Convolution(nn.Module):
    """One round of message passing along the bonds, `[V, C] -> [V, C]`. `aggregation` pools the
    messages: `SumOfMessages` or `EquilibriumOfMessages`."""

    def __init__(self, channels: int, aggregation: nn.Module) -> None:
        super().__init__()
        self.bond_encoder = CategoryEncoder(BOND_CATEGORIES, channels)
        self.aggregation = aggregation

    @abstractmethod
    def forward(self, x: Tensor, batch: MoleculeBatch, bonds: Tensor) -> Tensor:
        """Pass messages between the atoms `x`, given the bonds' `MultiHot` features `[E, F]`."""


class GINConvolution(Convolution):
    r"""The convolution of the graph isomorphism network,

    $$x_i' = \mathrm{MLP}\Bigl((1 + \epsilon) \, x_i
    + \bigoplus_{j \to i} \mathrm{relu}(x_j + e_{ji})\Bigr),$$

    where $e$ embeds the bond, the MLP has one hidden layer of `2 * channels` with batch
    normalisation, and the messages are pooled by `aggregation`.
    """

    def __init__(self, channels: int, aggregation: nn.Module) -> None:
        super().__init__(channels, aggregation)
        self.epsilon = nn.Parameter(torch.zeros(1))
        self.first = nn.Linear(channels, 2 * channels)
        self.norm = MaskedBatchNorm(2 * channels)
        self.second = nn.Linear(2 * channels, channels)

    def forward(self, x: Tensor, batch: MoleculeBatch, bonds: Tensor) -> Tensor:
        messages = torch.relu(batch.at_sources(x) + self.bond_encoder(bonds))
        pooled = self.aggregation(messages, batch)
        x = torch.addcmul(x + pooled, x, self.epsilon).to(x.dtype)
        return self.second(self.norm(self.first(x), batch.real_atoms, relu=True))


class GCNConvolution(Convolution):
    r"""The convolution of the graph convolutional network with OGB's bond features and root
    message: with $z = W x + b$ and $d_i$ the atom's number of bonds plus one,

    $$x_i' = \bigoplus_{j \to i} \frac{\mathrm{relu}(z_j + e_{ji})}{\sqrt{d_i d_j}}
    + \frac{\mathrm{relu}(z_i + r)}{d_i},$$

    where $e$ embeds the bond, $r$ is learned, and the messages are pooled by `aggregation`.
    """

    def __init__(self, channels: int, aggregation: nn.Module) -> None:
        super().__init__(channels, aggregation)
        self.linear = nn.Linear(channels, channels)
        self.root = nn.Parameter(torch.randn(1, channels))

    def forward(self, x: Tensor, batch: MoleculeBatch, bonds: Tensor) -> Tensor:
        x = self.linear(x)
        of_bonds, of_atoms = batch.degree_weights(torch.promote_types(x.dtype, torch.float32))
        messages = of_bonds * torch.relu(batch.at_sources(x) + self.bond_encoder(bonds))
        pooled = self.aggregation(messages.to(x.dtype), batch)
        return torch.addcmul(pooled, torch.relu(x + self.root), of_atoms).to(x.dtype)


CONVOLUTIONS: dict[str, type[Convolution]] = {"gin": GINConvolution, "gcn": GCNConvolution}


class VirtualNode(nn.Module):
    r"""The virtual node of OGB's reference network: a node $v$ per molecule that starts at a
    learned vector, initially zero, is added to all atoms before each convolution, and is updated
    between convolutions by

    $$v' = \mathrm{dropout}(\mathrm{MLP}(v + \sum_i x_i)),$$

    where $x$ is the input of the convolution and the MLP has sizes `2 * channels` and `channels`,
    each with batch normalisation and relu. $v$ has a row per molecule and one for padding atoms.
    There is one update fewer than convolutions.
    """

    def __init__(self, channels: int, updates: int, dropout: float) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(1, channels))
        self.updates = nn.ModuleList(_Update(channels) for _ in range(updates))
        self.dropout = nn.Dropout(dropout)

    def first(self, batch: MoleculeBatch) -> Tensor:
        """The initial nodes, `[G + 1, C]`."""
        return self.start.expand(batch.num_molecules + 1, -1)

    def update(self, layer: int, virtual: Tensor, x: Tensor, batch: MoleculeBatch) -> Tensor:
        """The nodes after the convolution `layer`, whose input was `x [V, C]`."""
        received = virtual + batch.sum_atoms(x).to(x.dtype)
        return self.dropout(self.updates[layer](received, batch.real_molecules))


class _Update(nn.Module):
    """Two layers with batch normalisation and relu, `[G + 1, C] -> [G + 1, C]`."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Linear(channels, 2 * channels)
        self.first_norm = MaskedBatchNorm(2 * channels)
        self.second = nn.Linear(2 * channels, channels)
        self.second_norm = MaskedBatchNorm(channels)

    def forward(self, x: Tensor, rows: RealRows) -> Tensor:
        x = self.first_norm(self.first(x), rows, relu=True)
        return self.second_norm(self.second(x), rows, relu=True)
