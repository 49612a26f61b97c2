"""Predictions of a network for many molecules."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from equipool.experiments.molecules.batching import Capacity, choose_capacity, pack
from equipool.experiments.molecules.data.molecule_set import MoleculeSet
from equipool.experiments.molecules.storage import MoleculeArrays, Resident, Storage
from equipool.training.progress import track
from equipool.training.task import Batch

MAX_MOLECULES = 512  # per batch
MAX_ATOMS = 2**17  # per batch, if every molecule were padded to the longest
BATCHES_SENT = 16  # at a time


@torch.no_grad()
def predict(
    network: nn.Module, storage: Storage, molecules: MoleculeSet, positions: Tensor
) -> Tensor:
    """The network's outputs for some molecules of a data set, in batches of one shape.

    Args:
        network: in evaluation mode, on the storage's device.
        storage: of the data set.
        molecules: the same data set, on the CPU.
        positions: of the molecules, `[n]` on the CPU.

    Returns:
        `[n, L]`, float32, on the CPU: logits, or numbers in the labels' units.
    """
    if not len(positions):
        return torch.zeros(0, molecules.num_labels)
    atoms, bonds = molecules.num_atoms, molecules.num_bonds
    fitting = max(MAX_ATOMS // max(int(atoms.max()), 1), 1)
    capacity = choose_capacity(min(MAX_MOLECULES, fitting, len(positions)), atoms, bonds)
    places = pack(atoms[positions], bonds[positions], capacity)
    steps = _send_steps(storage, torch.where(places < 0, -1, positions[places]), capacity)
    outputs = [
        network(storage.batch(step, capacity).molecules).labels
        for step in track(steps, total=len(places))
    ]
    return torch.cat(outputs).float().cpu()[places.flatten() >= 0]


def _send_steps(storage: Storage, molecules: Tensor, capacity: Capacity) -> Iterator[Batch]:
    """What the storage sends for each of the batches `molecules [num_batches, G]`."""
    for some in molecules.split(BATCHES_SENT):
        sent = storage.send(some, capacity)
        for step in range(len(some)):
            yield {name: values[step] for name, values in sent.items()}


def predict_molecules(network: nn.Module, molecules: MoleculeSet, device: torch.device) -> Tensor:
    """The network's outputs for all molecules of a set, `[n, L]`. See `predict`."""
    storage = Resident(MoleculeArrays.of(molecules), device)
    return predict(network, storage, molecules, torch.arange(len(molecules)))
