"""The batches of training, epoch after epoch."""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache

import torch
from torch import Tensor

from equipool.experiments.molecules.packing import Capacity, pack
from equipool.experiments.streams import generator_for


class Epochs:
    """All molecules of the training part once in each epoch, in an order that belongs to the seed
    and the epoch, cut into batches.

    How many batches an epoch has differs a little from one to the next, so a step is looked up:
    an epoch's count is found when it is first needed, and remembered.

    Args:
        positions: the molecules to train on, `[n]`.
        atoms: of each of them, `[n]`.
        bonds: of each of them, `[n]`.
        capacity: of a batch.
        seed: of the order.
    """

    def __init__(
        self, positions: Tensor, atoms: Tensor, bonds: Tensor, capacity: Capacity, seed: int
    ) -> None:
        if not len(positions):
            raise ValueError("there are no molecules to train on")
        self.positions, self.atoms, self.bonds = positions, atoms, bonds
        self.capacity, self.seed = capacity, seed
        self._first = [0]  # step at which each epoch begins
        self._epoch = lru_cache(maxsize=4)(self._pack)

    def batches(self, first_step: int, num_steps: int) -> Tensor:
        """Positions of the molecules of these steps, `[num_steps, G]`, -1 where there is none."""
        found: list[Tensor] = []
        step, end = first_step, first_step + num_steps
        while step < end:
            epoch, place = self.locate(step)
            rows = self._epoch(epoch)[place : place + end - step]
            found.append(rows)
            step += len(rows)
        return torch.cat(found)

    def locate(self, step: int) -> tuple[int, int]:
        """The epoch that a step is in, and its place there."""
        while self._first[-1] <= step:
            self._first.append(self._first[-1] + len(self._epoch(len(self._first) - 1)))
        epoch = bisect_right(self._first, step) - 1
        return epoch, step - self._first[epoch]

    def _pack(self, epoch: int) -> Tensor:
        """The batches of an epoch, `[num_batches, G]`."""
        generator = generator_for(torch.device("cpu"), "molecules", self.seed, epoch)
        order = torch.randperm(len(self.positions), generator=generator)
        places = pack(self.atoms[order], self.bonds[order], self.capacity)
        return torch.where(places < 0, -1, self.positions[order][places])
