"""Splits into training, validation and test molecules: for each an index into `PARTS`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from equipool.experiments.molecules.molecule_set import PARTS

SCAFFOLD, RANDOM = "scaffold", "random"
TRAIN, VALID, TEST, NO_PART = range(len(PARTS) + 1)
TRAIN_SHARE, VALID_SHARE = 0.8, 0.1  # the rest is for testing
PART_NAMES = {
    "train": TRAIN, "training": TRAIN,
    "valid": VALID, "validation": VALID, "val": VALID, "dev": VALID,
    "test": TEST, "testing": TEST,
}  # fmt: skip

Parts = npt.NDArray[np.uint8]


def scaffold_parts(scaffolds: Sequence[str]) -> Parts:
    """OGB's split: molecules with the same scaffold stay together.

    Scaffolds are taken by size, largest first (among equals, the last to appear), and fill the
    training part, then the validation part, then the test part. The test part therefore has the
    rarest scaffolds.
    """
    first, group, sizes = np.unique(
        np.array(scaffolds, dtype=np.str_), return_index=True, return_inverse=True,
        return_counts=True,
    )[1:]  # fmt: skip
    total, in_train, in_valid = len(scaffolds), 0, 0
    part_of_group = np.full(len(sizes), TEST, np.uint8)
    for one in np.lexsort((-first, -sizes)):
        size = int(sizes[one])
        if in_train + size <= TRAIN_SHARE * total:
            part_of_group[one] = TRAIN
            in_train += size
        elif in_train + in_valid + size <= (TRAIN_SHARE + VALID_SHARE) * total:
            part_of_group[one] = VALID
            in_valid += size
    return part_of_group[group]


def random_parts(number: int) -> Parts:
    """A random split, always the same for a number of molecules."""
    order = torch.randperm(number, generator=torch.Generator().manual_seed(0)).numpy()
    parts = np.full(number, TEST, np.uint8)
    parts[order[: round((TRAIN_SHARE + VALID_SHARE) * number)]] = VALID
    parts[order[: round(TRAIN_SHARE * number)]] = TRAIN
    return parts


def part_named(cell: str) -> int:
    """The part that the cell of a table names; `NO_PART` if it names none.

    Example:
        >>> part_named("Valid"), part_named("trian")
        (1, 3)
    """
    return PART_NAMES.get(cell.strip().lower(), NO_PART)
