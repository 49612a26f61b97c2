"""A virtual node: one more atom to each molecule, bound to all of it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from equipool.experiments.molecules.network.batch import MoleculeBatch
from equipool.experiments.molecules.network.norm import MaskedBatchNorm, RealRows


class VirtualNode(nn.Module):
    r"""As in OGB's reference: the node $v$ of a molecule starts at one learned vector, which begins
    at zero, is added to all atoms before each convolution, and between two of them becomes

    $$v' = \mathrm{dropout}(\mathrm{MLP}(v + \sum_i x_i)),$$

    where $x$ are the atoms that went into the convolution, and the MLP has sizes `2 * channels` and
    `channels`, each with batch normalisation and relu.

    The rows of `v` are those of the molecules, and one more for the padding atoms.

    Args:
        channels: of the atoms.
        updates: how often the node is updated: once less than there are convolutions.
        dropout: share of its channels that are dropped in training.
    """

    def __init__(self, channels: int, updates: int, dropout: float) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(1, channels))
        self.updates = nn.ModuleList(_Update(channels) for _ in range(updates))
        self.dropout = nn.Dropout(dropout)

    def first(self, batch: MoleculeBatch) -> Tensor:
        """The nodes at their start, `[G + 1, C]`."""
        return self.start.expand(batch.num_molecules + 1, -1)

    def update(self, layer: int, virtual: Tensor, x: Tensor, batch: MoleculeBatch) -> Tensor:
        """The nodes after the convolution of this number, which read `x [V, C]`."""
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
