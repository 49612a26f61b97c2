"""Bags of vectors with a label for each bag, and the folds to test on.

Tables are `bags/NAME.parquet` in the folder of `EQUIPOOL_DATA`: a row for each element, with the
columns `bag` (0 to B - 1), the label and the features. docs/reproduction/bags.md lists the sources.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pyarrow import parquet

CLASSICS = ("musk1", "musk2", "fox", "tiger", "elephant")
DATASETS = (*CLASSICS, "jets", "cdnow")
LABELS = {"cdnow": "buys_again"}  # whether the customer buys again; elsewhere `label`
OTHER_TARGETS = ("future_spend",)
REPEATS = 5
# Photons, pions, kaons, protons, neutrons, electrons and muons, as the Particle Data Group numbers
# them.
PARTICLES = (22, 211, -211, 130, 321, -321, 2212, -2212, 2112, -2112, 11, -11, 13, -13)

Array = NDArray[Any]
Bags = list[Array]


def folder() -> Path:
    return Path(os.environ["EQUIPOOL_DATA"]) / "bags"


@cache
def load_bags(name: str) -> tuple[Bags, Array]:
    """The bags `[n_i, C]` of a data set and their labels, 0 or 1. The momenta of jets are read as
    logarithms, and the kinds of their particles as a column each."""
    table = parquet.read_table(folder() / f"{name}.parquet")
    columns = {column: table[column].to_numpy() for column in table.column_names}
    bag, label = columns.pop("bag"), columns.pop(LABELS.get(name, "label"))
    features = []
    for column, values in columns.items():
        if column == "pdgid":
            features += [values == code for code in PARTICLES]
        elif column not in OTHER_TARGETS:
            features.append(np.log(values) if (name, column) == ("jets", "pt") else values)
    order = np.argsort(bag, kind="stable")
    x = np.stack(features, axis=1).astype(np.float32)[order]
    numbers, first = np.unique(bag[order], return_index=True)
    assert np.array_equal(numbers, np.arange(len(numbers))), f"{name}: bags have gaps"
    return np.split(x, first[1:]), label[order][first].astype(np.int64)


@cache
def load_folds(name: str) -> Array:
    """Which bags each fold trains on, `[repeats, folds, B]`: those of `folds.npz` if it has them,
    else folds in which every class has about its share."""
    with np.load(folder() / "folds.npz", allow_pickle=False) as published:
        if name in published.files:
            return published[name]
    labels = load_bags(name)[1]
    num_folds = 10 if name in CLASSICS else 5
    folds = np.ones((REPEATS, num_folds, len(labels)), dtype=bool)
    for repeat in range(REPEATS):
        key = repr(("bags", name, "folds", repeat)).encode()
        seed = int.from_bytes(hashlib.blake2b(key, digest_size=4).digest(), "little")
        shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
        by_class = shuffled[torch.from_numpy(labels)[shuffled].sort(stable=True).indices]
        folds[repeat, np.arange(len(labels)) % num_folds, by_class.numpy()] = False
    return folds


def split(name: str, repeat: int, fold: int) -> tuple[tuple[Bags, Array], tuple[Bags, Array]]:
    """The bags and labels to train on, and those to test on."""
    bags, labels = load_bags(name)
    trained = load_folds(name)[repeat, fold]
    train, test = (
        ([bags[at] for at in np.flatnonzero(chosen)], labels[chosen])
        for chosen in (trained, ~trained)
    )
    return train, test
