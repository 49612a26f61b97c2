"""Training, validation and test molecules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from equipool.experiments.molecules.data.graphs import PARTS
from equipool.experiments.molecules.data.groups import Groups
from equipool.experiments.molecules.data.scaffolds import scaffold_of

TRAIN, VALID, TEST = range(3)
WORDS = {
    "train": TRAIN, "training": TRAIN,
    "valid": VALID, "validation": VALID, "val": VALID, "dev": VALID,
    "test": TEST, "testing": TEST,
}  # fmt: skip

Parts = npt.NDArray[np.uint8]


class Split(ABC):
    """Says of each molecule which part it belongs to, by the group that it is in."""

    @property
    def column(self) -> str | None:
        """The column of the table that it reads."""
        return None

    def check_cell(self, cell: str) -> None:  # noqa: B027 - most read no cell
        """Raise `ValueError` where the cell of its column makes no sense."""

    @abstractmethod
    def group(self, molecule: Any, smiles: str, cell: str) -> str:
        """The group of a molecule (RDKit's), given the cell of the split's column."""

    @abstractmethod
    def divide(self, groups: Groups) -> Parts:
        """The part of each molecule, a position in `PARTS`: `[G]`."""


@dataclass(frozen=True)
class ScaffoldSplit(Split):
    """OGB's scaffold split: molecules of one Bemis-Murcko scaffold stay together. Scaffolds are
    taken by the number of their molecules, the largest first (among equals the one that appears
    last), and go to training until it is full, then to validation, then to the test. So the test
    has the rarest.

    A molecule whose scaffold RDKit cannot take is a scaffold of its own.

    Args:
        train: share of the molecules for training.
        valid: share for validation. The rest is the test.
    """

    train: float = 0.8
    valid: float = 0.1

    def __post_init__(self) -> None:
        _check_shares(self.train, self.valid)

    def group(self, molecule: Any, smiles: str, cell: str) -> str:
        return scaffold_of(molecule, smiles)

    def divide(self, groups: Groups) -> Parts:
        numbers = groups.numbers
        sizes = np.bincount(numbers, minlength=len(groups.names))
        order = np.lexsort((-np.arange(len(sizes)), -sizes))
        full_train = self.train * len(groups)
        full_valid = (self.train + self.valid) * len(groups)
        part_of_group = np.empty(len(sizes), np.uint8)
        in_train = in_valid = 0
        for group in order:
            size = int(sizes[group])
            if in_train + size <= full_train:
                part_of_group[group] = TRAIN
                in_train += size
            elif in_train + in_valid + size <= full_valid:
                part_of_group[group] = VALID
                in_valid += size
            else:
                part_of_group[group] = TEST
        return part_of_group[numbers]


@dataclass(frozen=True)
class RandomSplit(Split):
    """Molecules are shuffled and cut.

    Args:
        seed: of the shuffling.
        train: share of the molecules for training.
        valid: share for validation. The rest is the test.
    """

    seed: int = 0
    train: float = 0.8
    valid: float = 0.1

    def __post_init__(self) -> None:
        _check_shares(self.train, self.valid)

    def group(self, molecule: Any, smiles: str, cell: str) -> str:
        return ""

    def divide(self, groups: Groups) -> Parts:
        number = len(groups)
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(number, generator=generator).numpy()
        parts = np.full(number, TEST, np.uint8)
        end_train, end_valid = (
            round(self.train * number),
            round((self.train + self.valid) * number),
        )
        parts[order[:end_train]] = TRAIN
        parts[order[end_train:end_valid]] = VALID
        return parts


@dataclass(frozen=True)
class ColumnSplit(Split):
    """A column of the table says it: `train`, `valid` (or `val`, `validation`, `dev`) or `test`.

    Args:
        name: of the column.
    """

    name: str

    @property
    def column(self) -> str | None:
        return self.name

    def check_cell(self, cell: str) -> None:
        if _word(cell) not in WORDS:
            raise ValueError(
                f"column {self.name!r} is the split: expected {', '.join(PARTS)}, found {cell!r}"
            )

    def group(self, molecule: Any, smiles: str, cell: str) -> str:
        return _word(cell)

    def divide(self, groups: Groups) -> Parts:
        parts = np.array([WORDS[name] for name in groups.names], np.uint8)
        return parts[groups.numbers]


def split_named(text: str) -> Split:
    """`scaffold`, `random` (in capitals, too), or else the name of a column.

    Example:
        >>> split_named("random"), split_named("fold")
        (RandomSplit(seed=0, train=0.8, valid=0.1), ColumnSplit(name='fold'))
    """
    if _word(text) == "scaffold":
        return ScaffoldSplit()
    return RandomSplit() if _word(text) == "random" else ColumnSplit(text)


def _word(cell: str) -> str:
    return cell.strip().lower()


def _check_shares(train: float, valid: float) -> None:
    if not (train > 0 and valid >= 0 and train + valid <= 1):
        raise ValueError(
            "train and valid: expected shares with train > 0, valid >= 0 and a sum of at most 1, "
            f"found {train} and {valid}"
        )
