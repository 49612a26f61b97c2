"""The network that predicts properties of molecules, with its readouts and virtual node."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from equipool.baselines.base import DenseRival
from equipool.checks import values_are_at_hand
from equipool.experiments.molecules.data.molecule_set import ATOM_CATEGORIES, BOND_CATEGORIES
from equipool.experiments.molecules.network.batch import MoleculeBatch
from equipool.experiments.molecules.network.convolutions import Convolution
from equipool.experiments.molecules.network.encoders import CategoryEncoder, MultiHot
from equipool.experiments.molecules.network.norm import MaskedBatchNorm, RealRows
from equipool.solution import record


class Readout(nn.Module):
    """Pools the atoms of each molecule with a layer that is called like
    `equipool.EquilibriumAggregation`.

    Args:
        aggregation: the layer, from C channels to K.
    """

    def __init__(self, aggregation: nn.Module) -> None:
        super().__init__()
        self.aggregation = aggregation

    @abstractmethod
    def forward(self, x: Tensor, mask: Tensor, batch: MoleculeBatch) -> Tensor:
        """Pool the atoms `x [V, C]` selected by `mask [V]`: `[G, K]`."""


class FlatReadout(Readout):
    """For layers that take concatenated sets of different sizes."""

    def forward(self, x: Tensor, mask: Tensor, batch: MoleculeBatch) -> Tensor:
        return self.aggregation(x, batch.molecule, mask=mask, dim_size=batch.num_molecules)


class PaddedReadout(Readout):
    """For layers that need sets padded to one size: that of the largest molecule in the batch, or
    in the data set if reading the batch's sizes would wait for the device."""

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
    """The readout that suits this layer."""
    kind = PaddedReadout if isinstance(aggregation, DenseRival) else FlatReadout
    return kind(aggregation)


class VirtualNode(nn.Module):
    r"""The virtual node of OGB's reference network: a node $v$ per molecule that starts at a
    learned vector, initially zero, is added to all atoms before each convolution, and is updated
    between convolutions by

    $$v' = \mathrm{dropout}(\mathrm{MLP}(v + \sum_i x_i)),$$

    where $x$ is the input of the convolution and the MLP has sizes `2 * channels` and `channels`,
    each with batch normalisation and relu. $v$ has a row per molecule and one for padding atoms.

    Args:
        channels: of the atoms.
        updates: number of updates, one fewer than convolutions.
        dropout: dropout rate after each update.
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
        mask = functional.pad(batch.molecule_mask, (0, 1))
        received = virtual + batch.sum_atoms(x).to(x.dtype)
        return self.dropout(self.updates[layer](received, RealRows.of(mask)))


class _Update(nn.Module):
    """Two layers with batch normalisation and relu, `[G + 1, C] -> [G + 1, C]`."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Linear(channels, 2 * channels)
        self.first_norm = MaskedBatchNorm(2 * channels)
        self.second = nn.Linear(2 * channels, channels)
        self.second_norm = MaskedBatchNorm(channels)

    def forward(self, x: Tensor, rows: RealRows) -> Tensor:
        x = torch.relu(self.first_norm(self.first(x), rows))
        return torch.relu(self.second_norm(self.second(x), rows))


class Prediction(NamedTuple):
    """The network's output for a batch."""

    labels: Tensor  # [G, L], of padding molecules too
    readout_aux_loss: Tensor  # scalar, auxiliary loss of an equilibrium readout; else 0
    local_aux_loss: Tensor  # scalar, sum over equilibrium convolutions; else 0


class MoleculeNetwork(nn.Module):
    """OGB's reference network: atom embeddings; convolutions, each followed by batch normalisation,
    relu (except the last) and dropout; a readout; and a linear layer.

    Args:
        channels: of the atoms.
        num_labels: number of outputs per molecule.
        convolutions: applied in order.
        readout: from `channels` to `channels`.
        units: scales the outputs to the labels' units, `[G, L] -> [G, L]`; optional.
        virtual_node: optional.
        dropout: dropout rate after each convolution.
        readout_dropout: dropout rate after the readout.
        atom_dropout: share of the atoms hidden from the readout in training.
    """

    def __init__(
        self,
        channels: int,
        num_labels: int,
        convolutions: Sequence[Convolution],
        readout: Readout,
        *,
        units: nn.Module | None = None,
        virtual_node: VirtualNode | None = None,
        dropout: float = 0.5,
        readout_dropout: float = 0.0,
        atom_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.atom_features = MultiHot(ATOM_CATEGORIES)
        self.bond_features = MultiHot(BOND_CATEGORIES)
        self.atom_encoder = CategoryEncoder(ATOM_CATEGORIES, channels)
        self.convolutions = nn.ModuleList(convolutions)
        self.norms = nn.ModuleList(MaskedBatchNorm(channels) for _ in convolutions)
        self.virtual_node = virtual_node
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
            pooled = self.readout(atoms, self._visible(batch), batch)
        labels = self.units(self.head(self.readout_dropout(pooled)))
        zero = labels.new_zeros((), dtype=torch.float32)
        return Prediction(
            labels,
            readout.aux_loss if readout else zero,
            local.aux_loss if local else zero,
        )

    def embed(self, batch: MoleculeBatch) -> Tensor:
        """The atoms after the last convolution, `[V, channels]`."""
        bonds, rows = self.bond_features(batch.bonds), RealRows.of(batch.atom_mask)
        x = self.atom_encoder(self.atom_features(batch.atoms))
        virtual = None if self.virtual_node is None else self.virtual_node.first(batch)
        last = len(self.convolutions) - 1
        for layer, convolution in enumerate(self.convolutions):
            if virtual is not None:
                x = x + batch.at_atoms(virtual)
            y = self.norms[layer](convolution(x, batch, bonds, rows), rows)
            y = self.dropout(y if layer == last else torch.relu(y))
            if self.virtual_node is not None and virtual is not None and layer < last:
                virtual = self.virtual_node.update(layer, virtual, x, batch)
            x = y
        return x

    def _visible(self, batch: MoleculeBatch) -> Tensor:
        """The atoms that the readout sees, `[V]`."""
        mask = batch.atom_mask
        if not self.training or not self.atom_dropout:
            return mask
        return mask & (torch.rand(mask.shape, device=mask.device) >= self.atom_dropout)
