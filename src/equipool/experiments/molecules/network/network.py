"""The network that predicts properties of molecules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from equipool.experiments.molecules.data.graphs import ATOM_CATEGORIES, BOND_CATEGORIES
from equipool.experiments.molecules.network.batch import MoleculeBatch
from equipool.experiments.molecules.network.convolutions import Convolution
from equipool.experiments.molecules.network.encoders import CategoryEncoder, MultiHot
from equipool.experiments.molecules.network.norm import MaskedBatchNorm, RealRows
from equipool.experiments.molecules.network.readouts import Readout
from equipool.experiments.molecules.network.virtual_node import VirtualNode
from equipool.solution import record


class Prediction(NamedTuple):
    """What the network says of a batch."""

    labels: Tensor  # [G, L], of padding molecules too
    readout_aux_loss: Tensor  # scalar, the auxiliary loss of an equilibrium readout; else 0
    local_aux_loss: Tensor  # scalar, those of equilibrium convolutions together; else 0


class MoleculeNetwork(nn.Module):
    """OGB's reference network: the atoms' embeddings, convolutions each with batch normalisation,
    relu (but for the last) and dropout, a readout of what the last one gives, and a linear map.

    Args:
        channels: of the atoms.
        num_labels: what is predicted of each molecule.
        convolutions: one after the other.
        readout: from `channels` to `channels`.
        units: brings the outputs to the labels' units, `[G, L] -> [G, L]`; None for none.
        virtual_node: bound to all atoms of a molecule; None for none.
        dropout: share of the channels that are dropped behind each convolution, in training.
        readout_dropout: behind the readout.
        atom_dropout: share of the atoms that the readout does not see, in training.
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
            pooled = self.readout(atoms, self._seen(batch), batch)
        labels = self.units(self.head(self.readout_dropout(pooled)))
        nothing = labels.new_zeros((), dtype=torch.float32)
        return Prediction(
            labels,
            readout.aux_loss if readout else nothing,
            local.aux_loss if local else nothing,
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

    def _seen(self, batch: MoleculeBatch) -> Tensor:
        """The atoms that the readout sees, `[V]`."""
        mask = batch.atom_mask
        if not self.training or not self.atom_dropout:
            return mask
        return mask & (torch.rand(mask.shape, device=mask.device) >= self.atom_dropout)
