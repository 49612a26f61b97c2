"""The network that predicts properties of molecules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from equipool.experiments.molecules.convolutions import CategoryEncoder, Convolution
from equipool.experiments.molecules.molecule_set import ATOM_CATEGORIES, MoleculeBatch
from equipool.potentials.base import wide
from equipool.solution import record


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
        return self.readout(x[seen], batch.molecule[seen], dim_size=batch.num_molecules)
