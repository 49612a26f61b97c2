"""Batches of molecules of different sizes with fixed shapes."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from equipool.experiments.data import generator_for

MULTIPLE = 16  # matrix products are fastest with such sizes
DEVIATIONS = 3.0


@dataclass(frozen=True)
class Capacity:
    """The largest number of molecules, atoms and bonds (in both directions) in a batch."""

    molecules: int
    atoms: int
    bonds: int


def choose_capacity(
    molecules: int,
    atoms: Tensor,
    bonds: Tensor,
    given: tuple[int | None, int | None] = (None, None),
) -> Capacity:
    """A capacity for nearly all batches of this many molecules: the expected total size plus three
    standard deviations, and at least the size of the largest molecule. `atoms [n]` and `bonds [n]`
    are those of the data; capacities that are `given` for them are kept.
    """
    names = ("atom_capacity", "bond_capacity")
    chosen = [
        _sufficient(molecules, sizes) if value is None else _checked(name, value, sizes)
        for name, value, sizes in zip(names, given, (atoms, bonds), strict=True)
    ]
    return Capacity(molecules, *chosen)


def pack(atoms: Tensor, bonds: Tensor, capacity: Capacity) -> Tensor:
    """Cut a sequence of molecules with `atoms [n]` and `bonds [n]` into batches, each filled as far
    as it goes. No molecule may be larger than the capacity of a batch.

    Returns the positions of the molecules in each batch, `[num_batches, molecules]`: numbers from 0
    to n - 1 in order, then -1 for empty places.

    Example:
        >>> pack(torch.tensor([3, 2, 4, 1]), torch.tensor([0, 0, 0, 0]), Capacity(3, 5, 1))
        tensor([[ 0,  1, -1],
                [ 2,  3, -1]])
    """
    limit = torch.minimum(_batch_end(atoms, capacity.atoms), _batch_end(bonds, capacity.bonds))
    limit = torch.minimum(limit, torch.arange(len(atoms)) + capacity.molecules)
    ends: list[int] = limit.tolist()
    starts = [0] if ends else []
    while starts and ends[starts[-1]] < len(ends):
        starts.append(ends[starts[-1]])
    first = torch.tensor(starts, dtype=torch.int64).unsqueeze(-1)
    end = torch.tensor([ends[start] for start in starts], dtype=torch.int64).unsqueeze(-1)
    position = first + torch.arange(capacity.molecules)
    return torch.where(position < end, position, -1)


class Epochs:
    """The training batches. Each epoch has every molecule once, in an order that depends only on
    the seed and the epoch.

    The number of batches varies a little between epochs. It is computed when an epoch is first
    needed, and remembered. `positions [n]` are the training molecules, with `atoms` and `bonds`.
    """

    def __init__(
        self, positions: Tensor, atoms: Tensor, bonds: Tensor, capacity: Capacity, seed: int
    ) -> None:
        if not len(positions):
            raise ValueError("there are no molecules to train on")
        self.positions, self.atoms, self.bonds = positions, atoms, bonds
        self.capacity, self.seed = capacity, seed
        self._first_step = [0]  # of each epoch
        self.epoch = lru_cache(maxsize=4)(self._pack_epoch)

    def batches(self, first_step: int, num_steps: int) -> Tensor:
        """Positions of the molecules of these steps, `[num_steps, G]`; -1 for empty places."""
        found: list[Tensor] = []
        step, end = first_step, first_step + num_steps
        while step < end:
            epoch, batch = self.locate(step)
            rows = self.epoch(epoch)[batch : batch + end - step]
            found.append(rows)
            step += len(rows)
        return torch.cat(found)

    def locate(self, step: int) -> tuple[int, int]:
        """The epoch of a step, and its batch there."""
        while self._first_step[-1] <= step:
            length = len(self.epoch(len(self._first_step) - 1))
            self._first_step.append(self._first_step[-1] + length)
        epoch = bisect_right(self._first_step, step) - 1
        return epoch, step - self._first_step[epoch]

    def _pack_epoch(self, epoch: int) -> Tensor:
        """The batches of an epoch, `[num_batches, G]`."""
        generator = generator_for(torch.device("cpu"), "molecules", self.seed, epoch)
        order = torch.randperm(len(self.positions), generator=generator)
        places = pack(self.atoms[order], self.bonds[order], self.capacity)
        return torch.where(places < 0, -1, self.positions[order][places])


def _sufficient(molecules: int, sizes: Tensor) -> int:
    numbers = sizes.double()
    deviation = float(numbers.std(correction=0)) if len(numbers) else 0.0
    expected = float(numbers.mean()) * molecules if len(numbers) else 0.0
    wanted = max(expected + DEVIATIONS * deviation * molecules**0.5, _largest(sizes), 1)
    return -int(-wanted // MULTIPLE) * MULTIPLE


def _checked(name: str, value: int, sizes: Tensor) -> int:
    if value < (largest := _largest(sizes)):
        expected = f"{largest} or more, the size of the largest molecule"
        raise ValueError(f"{name} is {value}, expected {expected}")
    return value


def _batch_end(sizes: Tensor, limit: int) -> Tensor:
    """For each molecule, the end of the largest batch starting there within this limit."""
    if (largest := _largest(sizes)) > limit:
        raise ValueError(f"a molecule has {largest} atoms or bonds, expected {limit} or fewer")
    total = functional.pad(sizes.cumsum(0), (1, 0))
    return torch.searchsorted(total, total[:-1] + limit, right=True) - 1


def _largest(sizes: Tensor) -> int:
    return int(sizes.max()) if len(sizes) else 0
