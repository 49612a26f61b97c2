"""Batches of molecules of different sizes that fit into fixed ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

MULTIPLE = 16  # matrix products like their sizes so
DEVIATIONS = 3.0


@dataclass(frozen=True)
class Capacity:
    """What a batch can hold: so many molecules, atoms and bonds (counted in both directions)."""

    molecules: int
    atoms: int
    bonds: int

    def __post_init__(self) -> None:
        if min(self.molecules, self.atoms, self.bonds) < 1:
            raise ValueError(f"the capacity is {self}, expected 1 or more of each")


def choose_capacity(
    molecules: int,
    atoms: Tensor,
    bonds: Tensor,
    given: tuple[int | None, int | None] = (None, None),
) -> Capacity:
    """A capacity that nearly all batches of so many molecules fit into: the usual sum of their
    sizes and three standard deviations more, and room for the largest molecule in any case.

    Args:
        molecules: of a batch.
        atoms: of each molecule of the data, `[n]`.
        bonds: of each molecule of the data, `[n]`.
        given: atoms and bonds of the capacity; None for what is chosen here.
    """
    chosen = [
        _enough(molecules, sizes) if wanted is None else _checked(name, wanted, sizes)
        for name, wanted, sizes in zip(
            ("atom_capacity", "bond_capacity"), given, (atoms, bonds), strict=True
        )
    ]
    return Capacity(molecules, *chosen)


def _enough(molecules: int, sizes: Tensor) -> int:
    numbers = sizes.double()
    spread = float(numbers.std(correction=0)) if len(numbers) else 0.0
    usual = float(numbers.mean()) * molecules if len(numbers) else 0.0
    wanted = max(usual + DEVIATIONS * spread * molecules**0.5, _largest(sizes), 1)
    return -int(-wanted // MULTIPLE) * MULTIPLE


def _largest(sizes: Tensor) -> int:
    return int(sizes.max()) if len(sizes) else 0


def _checked(name: str, wanted: int, sizes: Tensor) -> int:
    if wanted < max(_largest(sizes), 1):
        raise ValueError(
            f"{name} is {wanted}, expected {_largest(sizes)} or more, the size of the largest "
            "molecule"
        )
    return wanted


def pack(atoms: Tensor, bonds: Tensor, capacity: Capacity) -> Tensor:
    """Cut molecules, in their order, into batches, each as long as it fits.

    Args:
        atoms: of each molecule, `[n]`.
        bonds: of each molecule, `[n]`.
        capacity: what a batch can hold; no molecule is larger.

    Returns:
        Places of molecules in batches, `[num_batches, molecules]`: numbers from 0 to n - 1 in
        order, then -1 where there is none.

    Example:
        >>> pack(torch.tensor([3, 2, 4, 1]), torch.tensor([0, 0, 0, 0]), Capacity(3, 5, 1))
        tensor([[ 0,  1, -1],
                [ 2,  3, -1]])
    """
    reach = torch.minimum(_reach(atoms, capacity.atoms), _reach(bonds, capacity.bonds))
    reach = torch.minimum(reach, torch.arange(len(atoms)) + capacity.molecules)
    ends: list[int] = reach.tolist()
    starts = [0] if ends else []
    while starts and ends[starts[-1]] < len(ends):
        starts.append(ends[starts[-1]])
    first = torch.tensor(starts, dtype=torch.int64).unsqueeze(-1)
    end = torch.tensor([ends[start] for start in starts], dtype=torch.int64).unsqueeze(-1)
    place = first + torch.arange(capacity.molecules)
    return torch.where(place < end, place, -1)


def _reach(sizes: Tensor, limit: int) -> Tensor:
    """For each molecule where a batch that starts with it must end, by this limit alone."""
    if _largest(sizes) > limit:
        raise ValueError(
            f"a molecule has {_largest(sizes)} atoms or bonds, expected {limit} or fewer"
        )
    total = functional.pad(sizes.cumsum(0), (1, 0))
    return torch.searchsorted(total, total[:-1] + limit, right=True) - 1
