"""Where the molecules lie while a network is trained on them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from equipool.experiments.molecules.arrays import MoleculeArrays, assemble
from equipool.experiments.molecules.network.batch import MoleculeBatch
from equipool.experiments.molecules.packing import Capacity
from equipool.training.task import Batch

SHARE = 0.25  # of a GPU's free memory that a data set may take


class LabelledBatch(NamedTuple):
    """Molecules and what is known of them."""

    molecules: MoleculeBatch
    labels: Tensor  # [G, L], NaN where missing


class Storage(ABC):
    """Gives a step its molecules, in two parts: what is sent to the device beforehand, for many
    steps at once, and what is made of it there, in the step."""

    @abstractmethod
    def pieces(self, molecules: Tensor, capacity: Capacity) -> Batch:
        """What is sent for the steps with these molecules, `[num_steps, G]` on the CPU, -1 where
        there is none. Every tensor has the steps first."""

    @abstractmethod
    def labelled(self, pieces: Batch, capacity: Capacity) -> LabelledBatch:
        """The molecules of one step and their labels, from its pieces."""


class Resident(Storage):
    """The whole data set lies on the device. All that is sent are positions, and batches are put
    together there."""

    def __init__(self, arrays: MoleculeArrays, device: torch.device) -> None:
        self.arrays = arrays.to(device)
        self.device = device

    def pieces(self, molecules: Tensor, capacity: Capacity) -> Batch:
        return {"molecules": send(molecules, self.device)}

    def labelled(self, pieces: Batch, capacity: Capacity) -> LabelledBatch:
        return labelled(self.arrays, pieces["molecules"], capacity)


class Streamed(Storage):
    """The data set lies on the host. Batches are put together there, and sent."""

    def __init__(self, arrays: MoleculeArrays, device: torch.device) -> None:
        self.arrays = arrays
        self.device = device

    def pieces(self, molecules: Tensor, capacity: Capacity) -> Batch:
        steps = [labelled(self.arrays, step, capacity) for step in molecules]
        batches = [step.molecules._asdict() for step in steps]
        names = [name for name, value in batches[0].items() if isinstance(value, Tensor)]
        stacked = {name: torch.stack([batch[name] for batch in batches]) for name in names}
        stacked["labels"] = torch.stack([step.labels for step in steps])
        return {name: send(values, self.device) for name, values in stacked.items()}

    def labelled(self, pieces: Batch, capacity: Capacity) -> LabelledBatch:
        parts = {name: pieces[name] for name in MoleculeBatch._fields if name in pieces}
        batch = MoleculeBatch(**parts, longest=self.arrays.longest)
        return LabelledBatch(batch, pieces["labels"])


def labelled(arrays: MoleculeArrays, molecules: Tensor, capacity: Capacity) -> LabelledBatch:
    """A batch of the molecules at these positions, `[G]`; the labels of none are missing."""
    labels = arrays.labels[molecules.clamp(min=0)]
    labels = torch.where((molecules >= 0).unsqueeze(-1), labels, torch.nan)
    return LabelledBatch(assemble(arrays, molecules, capacity), labels)


def send(values: Tensor, device: torch.device) -> Tensor:
    """To the device, without waiting for it."""
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def choose_storage(arrays: MoleculeArrays, device: torch.device) -> Storage:
    """`Resident` where the data set fits: always on a CPU, where it is already."""
    if device.type != "cuda":
        return Resident(arrays, device)
    free, _ = torch.cuda.mem_get_info(device)
    fits = arrays.num_bytes <= SHARE * free
    return Resident(arrays, device) if fits else Streamed(arrays, device)
