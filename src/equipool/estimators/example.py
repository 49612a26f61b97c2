"""Generated bags, and tables of bags."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from equipool.tables import write_file

SHIFT, SPREAD = 2.0, 0.5  # of the elements that positive bags have in addition


def make_bags(
    num_bags: int = 200, *, num_features: int = 4, min_size: int = 5, max_size: int = 30,
    random_state: Any = None,
) -> tuple[list[NDArray[np.float32]], NDArray[np.int64]]:  # fmt: skip
    """Generate bags for a multiple-instance problem. Elements are normal with mean 0 and deviation
    1. In bags of label 1, up to a quarter of the elements, at least one, are instead normal with
    mean 2 and deviation 1/2. Half of the bags have label 1.

    Args:
        num_bags: the number of bags.
        num_features: size of an element.
        min_size: smallest number of elements of a bag.
        max_size: largest number of elements of a bag.
        random_state: seed, or a random generator of numpy.

    Returns:
        The bags, arrays `[n_i, num_features]`, and their labels, `[num_bags]`.

    Example:
        >>> bags, labels = make_bags(100, random_state=0)
        >>> len(bags), bags[0].shape[1], labels.mean()
        (100, 4, np.float64(0.5))
    """
    draw = check_random_state(random_state)
    sizes = draw.randint(min_size, max_size + 1, num_bags)
    labels = draw.permutation(np.arange(num_bags) % 2)
    ends = np.cumsum(sizes)
    x = draw.standard_normal((sizes.sum(), num_features)).astype(np.float32)
    special = np.maximum(1, draw.rand(num_bags) * sizes / 4).astype(np.int64) * labels
    position = np.arange(len(x)) - np.repeat(ends - sizes, sizes)  # in its bag
    shifted = position < np.repeat(special, sizes)
    x[shifted] = SHIFT + SPREAD * x[shifted]
    return np.split(x, ends[:-1]), labels


def write_table(
    path: str | Path, bags: Sequence[NDArray[Any]], labels: Sequence[Any] | NDArray[Any]
) -> None:
    """Write bags as a table with one row per element and the columns `bag`, `label`, `x0`, `x1`,
    ...

    Args:
        path: ends in `.csv`, `.csv.gz` or `.parquet`.
        bags: arrays `[n_i, d]`, none of them empty.
        labels: of the bags.
    """
    if not all(len(bag) for bag in bags):
        raise ValueError("a bag is empty: a table cannot have bags without rows")
    sizes = [len(bag) for bag in bags]
    x = np.concatenate(bags)
    columns = {"bag": np.repeat(np.arange(len(bags)), sizes), "label": np.repeat(labels, sizes)}
    columns |= {f"x{number}": x[:, number] for number in range(x.shape[1])}
    write_file(pa.table(columns), path)
