"""What a task makes of its data before it trains."""

from __future__ import annotations

from functools import cache, cached_property

import torch
from torch import Tensor

from equipool.experiments.molecules.epochs import Epochs
from equipool.experiments.molecules.labels import Labels, labels_of
from equipool.experiments.molecules.packing import choose_capacity
from equipool.experiments.molecules.task_data import MoleculeData


class Prepared:
    """A data set, and what follows from it and a task's fields.

    Args:
        data: the data set.
        train_limit: molecules to train on; None for all of the training part.
        batch_size: molecules of a batch.
        capacity: atoms and bonds of a batch; None for what nearly all batches need.
        seed: of the order of the training molecules.
        measure: by which binary labels are judged.
    """

    def __init__(
        self,
        data: MoleculeData,
        train_limit: int | None,
        batch_size: int,
        capacity: tuple[int | None, int | None],
        seed: int,
        measure: str,
    ) -> None:
        self.data, self.seed, self.measure = data, seed, measure
        self.training: Tensor = data.training(train_limit)  # positions
        if not data.present[self.training].any():
            raise ValueError(
                f"no label is known of the {len(self.training):,} training molecules: expected "
                "some, choose other labels or another split"
            )
        self.atoms = data.molecules.num_atoms[self.training]
        self.bonds = data.molecules.num_bonds[self.training]
        self.capacity = choose_capacity(batch_size, self.atoms, self.bonds, capacity)
        # a captured step reads the labels' deviations where they lie
        self.labels = cache(self._labels)

    @cached_property
    def epochs(self) -> Epochs:
        """The batches of training."""
        return Epochs(self.training, self.atoms, self.bonds, self.capacity, self.seed)

    def _labels(self, device: torch.device) -> Labels:
        """The labels, whose losses are taken on a device."""
        return labels_of(self.data.molecules, self.training, device, self.measure)
