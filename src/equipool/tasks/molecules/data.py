"""The data sets of the task, read once and kept."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from equipool.data.molecules import CsvSource, load_molecules
from equipool.tasks.molecules.arrays import MoleculeArrays
from equipool.tasks.molecules.storage import Storage, choose_storage
from equipool.tasks.streams import generator_for

# A captured step reads the arrays where they lie, so they must not go while a run uses them.
DATA_SETS_AT_ONCE = 8


class MoleculeData:
    """A data set, and where it lies on each device."""

    def __init__(self, source: str | CsvSource, folder: Path) -> None:
        self.molecules = load_molecules(source, folder)
        self.arrays = MoleculeArrays.of(self.molecules)
        self.present = (~torch.isnan(self.molecules.labels)).sum(1)  # labels of each molecule
        self.storage = lru_cache(maxsize=None)(self._storage)

    def _storage(self, device: torch.device) -> Storage:
        return choose_storage(self.arrays, device)

    def training(self, limit: int | None) -> Tensor:
        """Positions of the molecules to train on: the training part, or so many of it, taken at
        random and always the same."""
        positions = self.molecules.split["train"]
        if limit is None or limit >= len(positions):
            return positions
        generator = generator_for(torch.device("cpu"), "molecules", "limit")
        chosen = torch.randperm(len(positions), generator=generator)[:limit]
        return positions[chosen.sort().values]


@lru_cache(maxsize=DATA_SETS_AT_ONCE)
def molecule_data(source: str | CsvSource, folder: Path) -> MoleculeData:
    """A data set by its name or its table, from a data folder."""
    return MoleculeData(source, folder)
