"""The networks that predict properties of molecules: OGB's reference networks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from equipool.experiments.molecules.molecule_set import (
    ATOM_CATEGORIES,
    BOND_CATEGORIES,
    MoleculeBatch,
)
from equipool.potentials.base import wide
from equipool.solution import record


class CategoryEncoder(nn.Module):
    """The sum of an embedding of each categorical feature, OGB's encoder of atoms and of bonds:
    `[N, F]` integers, each from 0 to its feature's size - 1, give `[N, channels]`.

    Example:
        >>> CategoryEncoder((2, 3), 8)(torch.tensor([[1, 0]])).shape
        torch.Size([1, 8])
    """

    first: Tensor

    def __init__(self, sizes: Sequence[int], channels: int) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        self.register_buffer("first", torch.tensor([0, *accumulate(sizes[:-1])]), persistent=False)
        self.weight = nn.Parameter(torch.empty(sum(sizes), channels))
        for table in self.weight.detach().split(self.sizes):
            nn.init.xavier_uniform_(table)

    def forward(self, categories: Tensor) -> Tensor:
        return functional.embedding_bag(categories + self.first, self.weight, mode="sum")


def segment_sum(values: Tensor, ptr: Tensor) -> Tensor:
    """Sum the rows `ptr[i]:ptr[i + 1]` for every i, in float32 or wider: `[N, C] -> [n, C]`. Unlike
    `index_add` it gives the same digits in every run on a GPU.

    Example:
        >>> segment_sum(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([0, 2, 3, 3]))
        tensor([[3.],
                [4.],
                [0.]])
    """
    return torch.segment_reduce(wide(values), "sum", offsets=ptr, axis=0, unsafe=True)


def take(rows: Tensor, index: Tensor) -> Tensor:
    """`rows[index]`, whose derivative is also the same in every run on a GPU."""
    return functional.embedding(index, rows)


class MessageSum(nn.Module):
    """The sum of the messages to each atom, zero for an atom without bonds. It is called like
    `equipool.EquilibriumAggregation`."""

    def forward(self, messages: Tensor, *, ptr: Tensor) -> Tensor:
        return segment_sum(messages, ptr)


class Convolution(nn.Module):
    """One round of message passing along the bonds, `[V, C] -> [V, C]`. `aggregation` pools the
    messages to each atom, with the call of `equipool.EquilibriumAggregation`."""

    def __init__(self, channels: int, aggregation: nn.Module) -> None:
        super().__init__()
        self.bond_encoder = CategoryEncoder(BOND_CATEGORIES, channels)
        self.aggregation = aggregation

    def messages(self, x: Tensor, batch: MoleculeBatch) -> Tensor:
        """$relu(x_j + e_{ji})$ for each bond, `[E, C]`, where $e$ embeds the bond."""
        return torch.relu(take(x, batch.source) + self.bond_encoder(batch.bonds))


class GINConvolution(Convolution):
    r"""The convolution of the graph isomorphism network,

    $$x_i' = \mathrm{MLP}\Bigl((1 + \epsilon) \, x_i
    + \bigoplus_{j \to i} \mathrm{relu}(x_j + e_{ji})\Bigr),$$

    where the MLP has one hidden layer of `2 * channels` with batch normalisation, and the messages
    are pooled by `aggregation`.
    """

    def __init__(self, channels: int, aggregation: nn.Module) -> None:
        super().__init__(channels, aggregation)
        self.epsilon = nn.Parameter(torch.zeros(1))
        self.mlp = nn.Sequential(
            nn.Linear(channels, 2 * channels), nn.BatchNorm1d(2 * channels), nn.ReLU(),
            nn.Linear(2 * channels, channels),
        )  # fmt: skip

    def forward(self, x: Tensor, batch: MoleculeBatch) -> Tensor:
        pooled = self.aggregation(self.messages(x, batch), ptr=batch.bond_ptr)
        return self.mlp(torch.addcmul(x + pooled, x, self.epsilon).to(x.dtype))


class GCNConvolution(Convolution):
    r"""The convolution of the graph convolutional network with OGB's bond features and root
    message: with $z = W x + b$ and $d_i$ the atom's number of bonds plus one,

    $$x_i' = \bigoplus_{j \to i} \frac{\mathrm{relu}(z_j + e_{ji})}{\sqrt{d_i d_j}}
    + \frac{\mathrm{relu}(z_i + r)}{d_i},$$

    where $r$ is learned, and the messages are pooled by `aggregation`.
    """

    def __init__(self, channels: int, aggregation: nn.Module) -> None:
        super().__init__(channels, aggregation)
        self.linear = nn.Linear(channels, channels)
        self.root = nn.Parameter(torch.randn(1, channels))

    def forward(self, x: Tensor, batch: MoleculeBatch) -> Tensor:
        z = self.linear(x)
        num_bonds = batch.bond_ptr.diff()
        degree = (num_bonds + 1).unsqueeze(-1).to(torch.promote_types(z.dtype, torch.float32))
        at_target = degree.repeat_interleave(num_bonds, 0, output_size=len(batch.source))
        weight = (degree[batch.source] * at_target).rsqrt()
        messages = (weight * self.messages(z, batch)).to(z.dtype)
        pooled = self.aggregation(messages, ptr=batch.bond_ptr)
        return (pooled + torch.relu(z + self.root) / degree).to(z.dtype)


CONVOLUTIONS: dict[str, type[Convolution]] = {"gin": GINConvolution, "gcn": GCNConvolution}


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


class Prediction(NamedTuple):
    """The network's output for a batch."""

    labels: Tensor  # [G, L], logits or numbers in the labels' units
    readout_aux_loss: Tensor  # scalar, auxiliary loss of an equilibrium readout; else 0
    local_aux_loss: Tensor  # scalar, sum over equilibrium convolutions; else 0


class MoleculeNetwork(nn.Module):
    """OGB's reference network: atom embeddings; convolutions, each followed by batch normalisation,
    relu (except the last) and dropout; a readout; and a linear layer.

    Args:
        readout: pools the atoms, with the call of `equipool.EquilibriumAggregation`.
        units: scales the outputs to the labels' units.
        dropout: dropout rate after each convolution.
        readout_dropout: dropout rate after the readout.
        atom_dropout: share of the atoms hidden from the readout in training.
    """

    def __init__(
        self,
        channels: int,
        num_labels: int,
        convolutions: Sequence[Convolution],
        readout: nn.Module,
        *,
        units: Units | None = None,
        dropout: float = 0.5,
        readout_dropout: float = 0.0,
        atom_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.atom_encoder = CategoryEncoder(ATOM_CATEGORIES, channels)
        self.convolutions = nn.ModuleList(convolutions)
        self.norms = nn.ModuleList(nn.BatchNorm1d(channels) for _ in convolutions)
        self.dropout = nn.Dropout(dropout)
        self.readout = readout
        self.readout_dropout = nn.Dropout(readout_dropout)
        self.atom_dropout = atom_dropout
        self.head = nn.Linear(channels, num_labels)
        self.units = units if units is not None else nn.Identity()

    def forward(self, batch: MoleculeBatch) -> Prediction:
        with record(diagnostics=False) as local:
            atoms = self.embed(batch)
        with record(diagnostics=False) as readout:
            pooled = self._pool(atoms, batch)
        labels = self.units(self.head(self.readout_dropout(pooled)))
        zero = labels.new_zeros((), dtype=torch.float32)
        aux_losses = [found.aux_loss if found else zero for found in (readout, local)]
        return Prediction(labels, *aux_losses)

    def embed(self, batch: MoleculeBatch) -> Tensor:
        """The atoms after the last convolution, `[V, channels]`."""
        x = self.atom_encoder(batch.atoms)
        last = len(self.convolutions) - 1
        for layer, norm in enumerate(self.norms):
            x = norm(self.convolutions[layer](x, batch))
            x = self.dropout(torch.relu(x) if layer < last else x)
        return x

    def _pool(self, x: Tensor, batch: MoleculeBatch) -> Tensor:
        """Pool the atoms `x [V, channels]` of each molecule, those that are not hidden."""
        if not self.training or not self.atom_dropout:
            return self.readout(x, ptr=batch.atom_ptr)
        seen = torch.rand(len(x), device=x.device) >= self.atom_dropout
        return self.readout(x[seen], batch.molecule[seen], dim_size=len(batch.atom_ptr) - 1)
