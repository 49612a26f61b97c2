"""What a network says of molecules, each of them once."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from equipool.experiments.molecules.arrays import MoleculeArrays
from equipool.experiments.molecules.data.graphs import MoleculeSet
from equipool.experiments.molecules.packing import choose_capacity, pack
from equipool.experiments.molecules.storage import Resident, Storage

MOLECULES_AT_ONCE = 512
ATOMS_AT_ONCE = 2**17  # where all molecules of a batch are padded to the longest of the set
BATCHES_AT_ONCE = 16  # whose molecules are sent together


@torch.no_grad()
def predict(
    network: nn.Module, storage: Storage, molecules: MoleculeSet, positions: Tensor
) -> Tensor:
    """The network's outputs for some molecules of a data set, in batches of one shape.

    Args:
        network: in evaluation mode, on the storage's device.
        storage: where the data set lies.
        molecules: the same data set, on the CPU.
        positions: the molecules, `[n]` on the CPU.

    Returns:
        `[n, L]`, float32, on the CPU: logarithms of odds, or numbers in the labels' units.
    """
    if not len(positions):
        return torch.zeros(0, molecules.num_labels)
    atoms, bonds = molecules.num_atoms, molecules.num_bonds
    at_once = min(MOLECULES_AT_ONCE, max(ATOMS_AT_ONCE // max(int(atoms.max()), 1), 1))
    capacity = choose_capacity(min(at_once, len(positions)), atoms, bonds)
    places = pack(atoms[positions], bonds[positions], capacity)
    found = []
    for some in places.split(BATCHES_AT_ONCE):
        sent = storage.pieces(torch.where(some < 0, -1, positions[some]), capacity)
        batches = [{name: values[i] for name, values in sent.items()} for i in range(len(some))]
        outputs = [network(storage.labelled(one, capacity).molecules).labels for one in batches]
        found.append(torch.cat(outputs).float().cpu()[some.flatten() >= 0])
    return torch.cat(found)


def predict_molecules(network: nn.Module, molecules: MoleculeSet, device: torch.device) -> Tensor:
    """The network's outputs for all molecules of a set, `[n, L]`. See `predict`."""
    storage = Resident(MoleculeArrays.of(molecules), device)
    return predict(network, storage, molecules, torch.arange(len(molecules)))
