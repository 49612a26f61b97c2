"""A task's data: read once per process, and kept where captured training steps read it."""

from __future__ import annotations

import hashlib
import json
from functools import cache, cached_property, partial
from pathlib import Path

import torch
from torch import Tensor

from equipool.environment import leads
from equipool.experiments.data import data_folder, generator_for
from equipool.experiments.molecules.batching import Epochs, choose_capacity
from equipool.experiments.molecules.data import CsvSource
from equipool.experiments.molecules.data.datasets import dataset_named
from equipool.experiments.molecules.data.load import molecule_cache, print_status
from equipool.experiments.molecules.data.table import listed
from equipool.experiments.molecules.labels import Labels, has_both, labels_of
from equipool.experiments.molecules.storage import MoleculeArrays, choose_storage

NO_SCORE_ADVICE = {
    "valid": "There will be no best checkpoint; the last one is used instead. Try another split",
    "test": "Try another split",
}
REQUIRED_LABELS = {"classification": "both a 0 and a 1", "regression": "a value"}

FileState = tuple[tuple[int, int], ...]


class MoleculeData:
    """A data set, and its storage on each device."""

    def __init__(self, source: str | CsvSource) -> None:
        file = molecule_cache(source)
        self.molecules = file.molecules()
        identity = json.dumps(file.about["source"], sort_keys=True).encode()
        self.fingerprint = hashlib.sha256(identity).hexdigest()[:16]
        self.arrays = MoleculeArrays.of(self.molecules)
        self.num_present = (~torch.isnan(self.molecules.labels)).sum(1)  # labels per molecule
        self.storage = cache(partial(choose_storage, self.arrays))
        if leads():
            self._warn_about_scores(source)

    def training_positions(self, limit: int | None) -> Tensor:
        """Positions of the training molecules, or of a fixed random choice of `limit` of them."""
        positions = self.molecules.split["train"]
        if limit is None or limit >= len(positions):
            return positions
        generator = generator_for(torch.device("cpu"), "molecules", "limit")
        chosen = torch.randperm(len(positions), generator=generator)[:limit]
        return positions[chosen.sort().values]

    def _warn_about_scores(self, source: str | CsvSource) -> None:
        """Warn about parts and labels for which no score can be computed."""
        name = source if isinstance(source, str) else source.location
        required = REQUIRED_LABELS[self.molecules.kind]
        for part, word in (("valid", "validation"), ("test", "test")):
            labels = self.molecules.labels[self.molecules.split[part]]
            binary = self.molecules.kind == "classification"
            scored = (has_both(labels) if binary else (~labels.isnan()).any(0)).tolist()
            ignored = [n for n, s in zip(self.molecules.label_names, scored, strict=True) if not s]
            if not any(scored):
                reason = f"no label has {required}" if len(labels) else "it is empty"
                advice = NO_SCORE_ADVICE[part]
                print_status(f"{name}: the {word} part has no score because {reason}. {advice}")
            elif ignored:
                print_status(
                    f"{name}: the {word} score ignores {len(ignored)} of {len(scored)} labels, "
                    f"which do not have {required} there: {listed(ignored, 5)}"
                )


class TrainingData:
    """A data set, and what follows from it and a task's fields: the number of training molecules
    (None for all), molecules per batch, the capacity for atoms and bonds (None to fit nearly all
    batches), the seed of the order of the molecules, and the score of binary labels."""

    def __init__(
        self, data: MoleculeData, train_limit: int | None, batch_size: int,
        capacity: tuple[int | None, int | None], seed: int, measure: str,
    ) -> None:  # fmt: skip
        self.data, self.seed, self.measure = data, seed, measure
        self.positions = data.training_positions(train_limit)
        if not data.num_present[self.positions].any():
            raise ValueError(
                f"none of the {len(self.positions):,} training molecules has a label: choose other "
                "labels or another split"
            )
        self.atoms = data.molecules.num_atoms[self.positions]
        self.bonds = data.molecules.num_bonds[self.positions]
        self.capacity = choose_capacity(batch_size, self.atoms, self.bonds, capacity)
        # cached: a captured step reads the labels' deviations where they are
        self.labels = cache(self._labels)

    @cached_property
    def epochs(self) -> Epochs:
        """The training batches."""
        return Epochs(self.positions, self.atoms, self.bonds, self.capacity, self.seed)

    def _labels(self, device: torch.device) -> Labels:
        return labels_of(self.data.molecules, self.positions, device, self.measure)


def data_of(source: str | CsvSource) -> MoleculeData:
    """The data of a source, read again if its files have changed."""
    folder = data_folder()
    found = dataset_named(source).find(folder) if isinstance(source, str) else source
    files = [] if found is None else [file for file in found.files if file.is_file()]
    state = tuple((file.stat().st_mtime_ns, file.stat().st_size) for file in files)
    return _read(source, folder, state)


@cache  # for the life of the process: a captured step reads the arrays where they are
def _read(source: str | CsvSource, folder: Path, state: FileState) -> MoleculeData:
    """The data of a source in a data folder whose files have these times and sizes."""
    return MoleculeData(source)
