"""The network that predicts properties of molecules, with its readouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from equipool.baselines.base import DenseRival
from equipool.checks import values_are_at_hand
from equipool.experiments.molecules.data.molecule_set import ATOM_CATEGORIES, BOND_CATEGORIES
from equipool.experiments.molecules.network.batch import MoleculeBatch, elements_of
from equipool.experiments.molecules.network.layers import (
    CategoryEncoder,
    Convolution,
    MultiHot,
    VirtualNode,
)
from equipool.experiments.molecules.network.norm import MaskedBatchNorm
from equipool.solution import record


class Readout(nn.Module):
    """Pools the atoms of each molecule with a layer from C channels to K that is called like
    `equipool.EquilibriumAggregation`.

    Some rivals need sets padded to one size. That is the size of the largest molecule in the batch,
    or in the data set if reading the batch's sizes would wait for the device.
    """

    def __init__(self, aggregation: nn.Module) -> None:
        super().__init__()
        self.aggregation = aggregation

    def forward(self, x: Tensor, batch: MoleculeBatch, mask: Tensor | None = None) -> Tensor:
        """Pool the atoms `x [V, C]`, or those selected by `mask [V]`: `[G, K]`."""
        if not isinstance(self.aggregation, DenseRival) or values_are_at_hand(x):
            if mask is None:
                return self.aggregation(elements_of(batch.atom_sets, x), batch.atom_sets)
            return self.aggregation(x, batch.molecule, mask=mask, dim_size=batch.num_molecules)
        place = torch.arange(batch.longest, device=x.device)
        first, end = batch.atom_ptr[:-2].unsqueeze(-1), batch.atom_ptr[1:-1].unsqueeze(-1)
        rows = (first + place).clamp(max=x.shape[0] - 1)
        real = first + place < end
        if mask is not None:
            real = real & mask[rows]
        padded = x.index_select(0, rows.flatten()).unflatten(0, rows.shape)
        return self.aggregation(padded, mask=real)


class Prediction(NamedTuple):
    """The network's output for a batch."""

    labels: Tensor  # [G, L], of padding molecules too
    readout_aux_loss: Tensor  # scalar, auxiliary loss of an equilibrium readout; else 0
    local_aux_loss: Tensor  # scalar, sum over equilibrium convolutions; else 0


class MoleculeNetwork(nn.Module):
    """OGB's reference network: atom embeddings; convolutions, each followed by batch normalisation,
    relu (except the last) and dropout; a readout; and a linear layer.

    `units` scales the outputs to the labels' units. `dropout` is the rate after each convolution,
    `readout_dropout` the one after the readout, and `atom_dropout` the share of the atoms hidden
    from the readout in training.
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
            pooled = self.readout(atoms, batch, self._visible(batch))
        labels = self.units(self.head(self.readout_dropout(pooled)))
        zero = labels.new_zeros((), dtype=torch.float32)
        aux_losses = [found.aux_loss if found else zero for found in (readout, local)]
        return Prediction(labels, *aux_losses)

    def embed(self, batch: MoleculeBatch) -> Tensor:
        """The atoms after the last convolution, `[V, channels]`."""
        bonds = self.bond_features(batch.bonds)
        x = self.atom_encoder(self.atom_features(batch.atoms))
        virtual = None if self.virtual_node is None else self.virtual_node.first(batch)
        last = len(self.convolutions) - 1
        for layer, convolution in enumerate(self.convolutions):
            if virtual is not None:
                x = x + batch.at_atoms(virtual)
            y = convolution(x, batch, bonds)
            y = self.dropout(self.norms[layer](y, batch.real_atoms, relu=layer < last))
            if self.virtual_node is not None and virtual is not None and layer < last:
                virtual = self.virtual_node.update(layer, virtual, x, batch)
            x = y
        return x

    def _visible(self, batch: MoleculeBatch) -> Tensor | None:
        """The atoms that the readout sees, `[V]`; None for all."""
        if not self.training or not self.atom_dropout:
            return None
        mask = batch.atom_mask
        return mask & (torch.rand(mask.shape, device=mask.device) >= self.atom_dropout)
