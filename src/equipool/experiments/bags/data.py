"""Bags of vectors with one label per bag: reading them, their folds, and batches of fixed shape."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from equipool.experiments.data import MissingDataError, data_folder, generator_for
from equipool.extras import check_extras

FOLDER, FOLDS = "bags", "folds.npz"
BAG = "bag"


@dataclass(frozen=True)
class Dataset:
    """What a table holds.

    Args:
        about: what a bag and its label are.
        label: column of the label, 0 or 1.
        others: further targets, which are not features.
        logarithms: columns of positive numbers that are read as their logarithms.
        categories: columns of codes, and the codes that become features, one column each.
        num_folds: number of folds where none are published.
    """

    about: str
    label: str = "label"
    others: tuple[str, ...] = ()
    logarithms: tuple[str, ...] = ()
    categories: tuple[tuple[str, tuple[int, ...]], ...] = ()
    num_folds: int = 10


# Photons, pions, kaons, protons, neutrons, electrons and muons, as the Particle Data Group numbers
# them.
PARTICLES = (22, 211, -211, 130, 321, -321, 2212, -2212, 2112, -2112, 11, -11, 13, -13)

DATASETS = {
    "musk1": Dataset("shapes of a molecule; whether it smells of musk"),
    "musk2": Dataset("shapes of a molecule, up to a thousand; whether it smells of musk"),
    "fox": Dataset("segments of an image; whether there is a fox"),
    "tiger": Dataset("segments of an image; whether there is a tiger"),
    "elephant": Dataset("segments of an image; whether there is an elephant"),
    "jets": Dataset(
        "particles of a jet; quark or gluon",
        logarithms=("pt",), categories=(("pdgid", PARTICLES),), num_folds=5,
    ),
    "cdnow": Dataset(
        "purchases of a customer; whether there are more",
        "buys_again", others=("future_spend",), num_folds=5,
    ),
}  # fmt: skip
CLASSICS = ("musk1", "musk2", "fox", "tiger", "elephant")
REPEATS = 5


@dataclass(frozen=True, eq=False)
class Bags:
    """A data set: elements `x [N, C]` in the order of their bags, offsets `ptr [B + 1]` and labels
    `[B]`, 0 or 1, all on one device."""

    x: Tensor  # float32
    ptr: Tensor  # int64
    labels: Tensor  # float32
    features: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def sizes(self) -> Tensor:
        """The number of elements of each bag, `[B]`."""
        return self.ptr.diff()

    def to(self, device: torch.device) -> Bags:
        """The same on a device."""
        x, ptr, labels = self.x.to(device), self.ptr.to(device), self.labels.to(device)
        return Bags(x, ptr, labels, self.features)

    def scaled_by(self, bags: Tensor) -> Bags:
        """The same, with features of mean 0 and deviation 1 over the elements of these bags;
        features that are constant there become 0."""
        chosen = torch.zeros(len(self), dtype=torch.bool)
        chosen[bags] = True
        elements = self.x[chosen.repeat_interleave(self.sizes)].double()
        deviation = elements.std(0, correction=0)
        scale = torch.where(deviation > 0, 1 / deviation, 0)
        x = ((self.x.double() - elements.mean(0)) * scale).float()
        return Bags(x, self.ptr, self.labels, self.features)

    def arrays(self, bags: Tensor | None = None) -> list[np.ndarray[Any, Any]]:
        """Each of these bags as an array, `[n_i, C]`; all of them by default."""
        found = [part.numpy() for part in self.x.cpu().tensor_split(self.ptr[1:-1].cpu())]
        return found if bags is None else [found[position] for position in bags.tolist()]

    def fingerprint(self) -> str:
        """A digest of elements, bags and labels."""
        digest = hashlib.blake2b(",".join(self.features).encode(), digest_size=8)
        for tensor in (self.x, self.ptr, self.labels):
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


class BagBatch(NamedTuple):
    """Some bags, their elements in a fixed number of places."""

    x: Tensor  # [capacity, C], zeros in empty places
    bag: Tensor  # [capacity] the bag of each element
    mask: Tensor  # [capacity] True = real


def gather_bags(bags: Bags, positions: Tensor, capacity: int) -> BagBatch:
    """The bags at `positions [G]`, -1 for none. Their elements must fit into the capacity, on which
    alone the shapes depend. Nothing waits for the device.

    Example:
        >>> bags = Bags(torch.tensor([[1.0], [2], [3]]), torch.tensor([0, 1, 3]), torch.ones(2), ())
        >>> gather_bags(bags, torch.tensor([1, -1]), 4).x.flatten().tolist()
        [2.0, 3.0, 0.0, 0.0]
    """
    place = positions.clamp(min=0)
    begin = bags.ptr[place]
    sizes = torch.where(positions < 0, 0, bags.ptr[place + 1] - begin)
    ptr = functional.pad(sizes.cumsum(0), (1, 0))
    slot = torch.arange(capacity, device=positions.device)
    owner = torch.searchsorted(ptr[1:], slot, right=True)
    mask = owner < len(positions)
    index = owner.clamp(max=len(positions) - 1)
    row = torch.where(mask, begin[index] + slot - ptr[index], 0)
    return BagBatch(torch.where(mask.unsqueeze(-1), bags.x[row], 0), index, mask)


class Split(NamedTuple):
    """Positions of the bags of each part."""

    train: Tensor
    valid: Tensor
    test: Tensor


def load_bags(name: str, folder: str | Path | None = None) -> Bags:
    """Read a data set, one of `DATASETS`, from `bags/NAME.parquet` in a folder, by default
    `data_folder()`: one row per element, with the columns `bag` (0 to B - 1), the label and the
    features. Read once."""
    return _load(name, data_folder(folder).absolute())


def load_folds(name: str, folder: str | Path | None = None) -> Tensor:
    """Which bags each fold trains on, `[repeats, folds, B]`: those in `bags/folds.npz` if it has
    them, else stratified folds that are always the same."""
    bags, file = load_bags(name, folder), data_folder(folder) / FOLDER / FOLDS
    if file.exists():
        with np.load(file, allow_pickle=False) as content:
            if name in content.files:
                return _check_folds(file, name, torch.from_numpy(content[name]), len(bags))
    return stratified_folds(bags.labels, DATASETS[name].num_folds, name)


def split_bags(
    name: str, repeat: int, fold: int, valid_share: float, folder: str | Path | None = None
) -> Split:
    """The bags of a fold. A share of its training bags, the same at every call, is for validation;
    every class has about that share of them."""
    bags, folds = load_bags(name, folder), load_folds(name, folder)
    for label, number, most in zip(("repeat", "fold"), (repeat, fold), folds.shape, strict=False):
        if not 0 <= number < most:
            raise ValueError(f"{label} is {number}, expected 0 to {most - 1} for {name}")
    trained = folds[repeat, fold]
    order = _by_class(bags.labels, (name, "validation", repeat, fold))
    order = order[trained[order]]
    held = round(valid_share * len(order))
    chosen = torch.zeros(len(order), dtype=torch.bool)
    chosen[torch.arange(held) * len(order) // max(held, 1)] = True  # at equal distances
    valid, train = order[chosen].sort().values, order[~chosen].sort().values
    return Split(train, valid, (~trained).nonzero().flatten())


def stratified_folds(labels: Tensor, num_folds: int, *key: object) -> Tensor:
    """Folds in which every class has about its share, drawn by the key: `[REPEATS, num_folds, B]`,
    True for training. Each bag is tested once per repeat.

    Example:
        >>> folds = stratified_folds(torch.tensor([0.0, 0, 0, 1, 1, 1]), 3, "example")
        >>> (~folds).sum(1).unique(), (~folds[0]).sum(1)
        (tensor([1]), tensor([2, 2, 2]))
    """
    folds = torch.ones(REPEATS, num_folds, len(labels), dtype=torch.bool)
    for repeat in range(REPEATS):
        order = _by_class(labels, (*key, "folds", repeat))  # dealt out in turn
        folds[repeat, torch.arange(len(labels)) % num_folds, order] = False
    return folds


def _by_class(labels: Tensor, key: Sequence[object]) -> Tensor:
    """All positions, one class after the other, each in a random order."""
    generator = generator_for(torch.device("cpu"), "bags", *key)
    shuffled = torch.randperm(len(labels), generator=generator)
    return shuffled[labels[shuffled].sort(stable=True).indices]


@cache  # unbounded: a captured step reads this memory for as long as it lives
def _load(name: str, folder: Path) -> Bags:
    if name not in DATASETS:
        raise ValueError(f"dataset is {name!r}, expected one of {list(DATASETS)}")
    file = folder / FOLDER / f"{name}.parquet"
    if not file.exists():
        raise MissingDataError(
            f"{file} is missing: put the table there, or give the directory that holds "
            f"{FOLDER}/{file.name} with --data-dir or EQUIPOOL_DATA. One row per element, columns "
            f"{BAG}, {DATASETS[name].label} and the features; docs/reproduction/bags.md lists the "
            "sources."
        )
    check_extras(f"reading {file}", {"estimators": ["pyarrow"]})
    from pyarrow import ArrowException, parquet

    try:
        table = parquet.read_table(file)
        columns = {column: table[column].to_numpy() for column in table.column_names}
        return _as_bags(columns, DATASETS[name])
    except (ArrowException, OSError, ValueError) as error:
        raise ValueError(f"{file} is not a table of {name}: {error}") from error


def _as_bags(columns: dict[str, np.ndarray[Any, Any]], dataset: Dataset) -> Bags:
    for name in (BAG, dataset.label, *dataset.logarithms):
        if name not in columns:
            raise ValueError(f"it has no column {name}, but {', '.join(columns)}")
    bag, label = columns.pop(BAG), columns.pop(dataset.label)
    order = np.argsort(bag, kind="stable")
    numbers, sizes = np.unique(bag, return_counts=True)
    if not np.array_equal(numbers, np.arange(len(numbers))) or not len(numbers):
        raise ValueError(f"{BAG} has gaps, expected every number from 0")
    ptr = np.concatenate([[0], sizes.cumsum()])
    labels = label[order][ptr[:-1]]
    different = label[order] != labels.repeat(sizes)
    if different.any():
        first = bag[order][different.argmax()]
        raise ValueError(f"{dataset.label} varies within bag {first}, expected one value per bag")
    if not set(np.unique(labels).tolist()) <= {0, 1}:
        raise ValueError(f"{dataset.label} has {np.unique(labels)[:5]}, expected 0 and 1")
    features = dict(_features(columns, dataset))
    x = np.stack([values[order] for values in features.values()], axis=1).astype(np.float32)
    if not np.isfinite(x).all():
        column = list(features)[int((~np.isfinite(x)).any(0).argmax())]
        raise ValueError(f"{column} has a value that is not finite")
    tensors = [torch.from_numpy(array) for array in (x, ptr, labels.astype(np.float32))]
    return Bags(tensors[0], tensors[1], tensors[2], tuple(features))


def _features(
    columns: dict[str, np.ndarray[Any, Any]], dataset: Dataset
) -> list[tuple[str, np.ndarray[Any, Any]]]:
    codes, found = dict(dataset.categories), []
    for name, values in columns.items():
        if name in dataset.others:
            continue
        if name in codes:
            found += [(f"{name}={code}", values == code) for code in codes[name]]
        elif name in dataset.logarithms:
            if not (values > 0).all():
                raise ValueError(f"{name} has {values.min()}, expected positive numbers")
            found.append((f"log {name}", np.log(values)))
        else:
            found.append((name, values))
    return found


def _check_folds(file: Path, name: str, folds: Tensor, num_bags: int) -> Tensor:
    if folds.dtype != torch.bool or folds.ndim != 3 or folds.shape[2] != num_bags:
        found = f"{folds.dtype} of shape {list(folds.shape)}"
        raise ValueError(
            f"{file}: {name} is {found}, expected bool of [repeats, folds, {num_bags}]"
        )
    return folds
