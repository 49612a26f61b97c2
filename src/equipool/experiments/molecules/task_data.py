"""The data sets of the task, read once and kept."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipool.environment import leads
from equipool.experiments.molecules.arrays import MoleculeArrays
from equipool.experiments.molecules.data import CsvSource
from equipool.experiments.molecules.data.known import known_set
from equipool.experiments.molecules.data.loading import molecule_cache
from equipool.experiments.molecules.data.metrics import has_both
from equipool.experiments.molecules.data.progress import say
from equipool.experiments.molecules.data.table import listed
from equipool.experiments.molecules.storage import Storage, choose_storage
from equipool.experiments.streams import generator_for

NO_SCORE = {
    "valid": "No checkpoint will be the best; the last one is used in its place. Another split may "
    "give one",
    "test": "Another split may give one",
}

State = tuple[tuple[int, int], ...]


class MoleculeData:
    """A data set, and where it lies on each device."""

    def __init__(self, source: str | CsvSource, folder: Path) -> None:
        file = molecule_cache(source, folder)
        self.molecules = file.molecules()
        self.fingerprint = _digest(file.about["source"])
        self.arrays = MoleculeArrays.of(self.molecules)
        self.present = (~torch.isnan(self.molecules.labels)).sum(1)  # labels of each molecule
        self.storage = cache(self._storage)
        if leads():
            self._say_what_cannot_be_measured(source)

    def _storage(self, device: torch.device) -> Storage:
        return choose_storage(self.arrays, device)

    def training(self, limit: int | None) -> Tensor:
        """Positions of the molecules to train on: the training part, or so many of it, taken at
        random and always the same."""
        positions = self.molecules.split["train"]
        if limit is None or limit >= len(positions):
            return positions
        generator = generator_for(torch.device("cpu"), "molecules", "limit")
        chosen = torch.randperm(len(positions), generator=generator)[:limit]
        return positions[chosen.sort().values]

    def _say_what_cannot_be_measured(self, source: str | CsvSource) -> None:
        name = source if isinstance(source, str) else source.location
        needed = {"classification": "both a 0 and a 1", "regression": "a value"}
        value = needed[self.molecules.kind]
        for part, word in (("valid", "validation"), ("test", "test")):
            labels, measured = self._measured(part)
            left_out = [
                n for n, m in zip(self.molecules.label_names, measured, strict=True) if not m
            ]
            if not any(measured):
                reason = f"no label has {value} there" if len(labels) else "it is empty"
                say(f"{name}: the {word} part gives no score, as {reason}. {NO_SCORE[part]}")
            elif left_out:
                say(
                    f"{name}: {len(left_out)} of {len(measured)} labels do not count in the {word} "
                    f"score, for want of {value} there: {listed(left_out, 5)}"
                )

    def _measured(self, part: str) -> tuple[Tensor, list[bool]]:
        """The labels of a part, and which of them can be measured there."""
        labels = self.molecules.labels[self.molecules.split[part]]
        if self.molecules.kind == "classification":
            return labels, has_both(labels).tolist()
        return labels, (~labels.isnan()).any(0).tolist()


def _digest(fingerprint: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fingerprint, sort_keys=True).encode()).hexdigest()[:16]


def state_of(source: str | CsvSource, folder: Path) -> State:
    """What is quick to see of the source's files, and changes when they do."""
    found = known_set(source).find(folder) if isinstance(source, str) else source
    files = [] if found is None else [file for file in found.files if file.is_file()]
    return tuple((file.stat().st_mtime_ns, file.stat().st_size) for file in files)


# For the life of the process: a captured step reads the arrays where they lie.
@cache
def molecule_data(source: str | CsvSource, folder: Path, state: State) -> MoleculeData:
    """A data set by its name or its table, from a data folder, when its files were so."""
    return MoleculeData(source, folder)
