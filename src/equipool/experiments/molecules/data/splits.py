"""Splits into training, validation and test molecules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from equipool.experiments.molecules.data.molecule_set import PARTS

TRAIN, VALID, TEST = range(3)
PART_NAMES = {
    "train": TRAIN, "training": TRAIN,
    "valid": VALID, "validation": VALID, "val": VALID, "dev": VALID,
    "test": TEST, "testing": TEST,
}  # fmt: skip

Parts = npt.NDArray[np.uint8]


class GroupIndex:
    """The group of each molecule, as a number. Groups are numbered in order of appearance.

    Example:
        >>> groups = GroupIndex(["ring", "chain", "ring"])
        >>> groups.ids.tolist(), groups.names
        ([0, 1, 0], ['ring', 'chain'])
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._id_of_name: dict[str, int] = {}
        self._ids = array("q")
        self.extend(names)

    def extend(self, names: Iterable[str]) -> None:
        """Add the group names of the next molecules."""
        known = self._id_of_name
        self._ids.extend(known.setdefault(name, len(known)) for name in names)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def names(self) -> list[str]:
        return list(self._id_of_name)

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """The group of each molecule, `[G]`."""
        return np.array(self._ids, dtype=np.int64)


class Split(ABC):
    """Assigns molecules to training, validation and test by the group each belongs to."""

    column: str | None = None  # the table column that it reads, if any

    def check_cell(self, cell: str) -> None:  # noqa: B027 - most splits read no cell
        """Raise `ValueError` if the cell of the split's column is invalid."""

    @abstractmethod
    def group(self, molecule: Any, smiles: str, cell: str) -> str:
        """The group of an RDKit molecule, given its cell in the split's column."""

    @abstractmethod
    def assign(self, groups: GroupIndex) -> Parts:
        """The part of each molecule as an index into `PARTS`, `[G]`."""


@dataclass(frozen=True)
class ScaffoldSplit(Split):
    """OGB's scaffold split: molecules with the same Bemis-Murcko scaffold stay together.

    Scaffolds are taken by size, largest first (among equals, the last to appear), and fill the
    training part, then the validation part, then the test part. The test part therefore has the
    rarest scaffolds.

    Args:
        train: share of the molecules for training.
        valid: share for validation. The rest is for testing.
    """

    train: float = 0.8
    valid: float = 0.1

    def __post_init__(self) -> None:
        _check_shares(self.train, self.valid)

    def group(self, molecule: Any, smiles: str, cell: str) -> str:
        """The scaffold as SMILES, with chirality: "" without rings. A molecule whose scaffold RDKit
        cannot compute forms a group of its own."""
        from rdkit.Chem.Scaffolds import MurckoScaffold

        try:
            return str(MurckoScaffold.MurckoScaffoldSmiles(mol=molecule, includeChirality=True))
        except (RuntimeError, ValueError):  # the scaffold alone may have an invalid valence
            return f"alone: {smiles}"

    def assign(self, groups: GroupIndex) -> Parts:
        sizes = np.bincount(groups.ids, minlength=len(groups.names))
        part_of_group = np.full(len(sizes), TEST, np.uint8)
        in_train = in_valid = 0
        for group in np.lexsort((-np.arange(len(sizes)), -sizes)):
            size = int(sizes[group])
            if in_train + size <= self.train * len(groups):
                part_of_group[group] = TRAIN
                in_train += size
            elif in_train + in_valid + size <= (self.train + self.valid) * len(groups):
                part_of_group[group] = VALID
                in_valid += size
        return part_of_group[groups.ids]


@dataclass(frozen=True)
class RandomSplit(Split):
    """A random split, with the shares of a `ScaffoldSplit`."""

    seed: int = 0
    train: float = 0.8
    valid: float = 0.1

    def __post_init__(self) -> None:
        _check_shares(self.train, self.valid)

    def group(self, molecule: Any, smiles: str, cell: str) -> str:
        return ""

    def assign(self, groups: GroupIndex) -> Parts:
        number, generator = len(groups), torch.Generator().manual_seed(self.seed)
        order = torch.randperm(number, generator=generator).numpy()
        parts = np.full(number, TEST, np.uint8)
        parts[order[: round((self.train + self.valid) * number)]] = VALID
        parts[order[: round(self.train * number)]] = TRAIN
        return parts


@dataclass(frozen=True)
class ColumnSplit(Split):
    """The table column `name` holds the part: `train`, `valid` (or `val`, `validation`, `dev`) or
    `test`."""

    name: str

    @property
    def column(self) -> str:  # type: ignore[override]
        return self.name

    def check_cell(self, cell: str) -> None:
        if _normalized(cell) not in PART_NAMES:
            known = ", ".join(PARTS)
            raise ValueError(f"split column {self.name!r}: expected {known}, found {cell!r}")

    def group(self, molecule: Any, smiles: str, cell: str) -> str:
        return _normalized(cell)

    def assign(self, groups: GroupIndex) -> Parts:
        parts = np.array([PART_NAMES[name] for name in groups.names], np.uint8)
        return parts[groups.ids]


def split_named(text: str) -> Split:
    """`scaffold` or `random` (in any case), or else the name of a column.

    Example:
        >>> split_named("random"), split_named("fold")
        (RandomSplit(seed=0, train=0.8, valid=0.1), ColumnSplit(name='fold'))
    """
    known: dict[str, Split] = {"scaffold": ScaffoldSplit(), "random": RandomSplit()}
    return known.get(_normalized(text), ColumnSplit(text))


def _normalized(cell: str) -> str:
    return cell.strip().lower()


def _check_shares(train: float, valid: float) -> None:
    if not (train > 0 and valid >= 0 and train + valid <= 1):
        expected = "shares with train > 0, valid >= 0 and a sum of at most 1"
        raise ValueError(f"train and valid: expected {expected}, found {train} and {valid}")
