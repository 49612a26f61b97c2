"""A data set as a task trains on it."""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from equipool.environment import leads
from equipool.experiments.molecules.molecule_set import MoleculeSet
from equipool.experiments.molecules.prepare import load_molecules
from equipool.experiments.molecules.scores import has_both, label_moments
from equipool.experiments.molecules.sources import MoleculeSource
from equipool.tables import listed
from equipool.training import generator_for

CPU = torch.device("cpu")


class TrainingData:
    """A data set, and what training derives from its labels."""

    def __init__(self, source: str | MoleculeSource) -> None:
        prepared = load_molecules(source)
        self.molecules, self.fingerprint = prepared.molecules, prepared.fingerprint
        self.training = self.molecules.positions("train")
        labels = self.molecules.labels
        self.num_present = (~labels.isnan()).sum(1)  # labels of each molecule
        self.mean, self.deviation = label_moments(labels[self.training])
        if not self.num_present[self.training].any():
            raise ValueError(
                f"none of the {len(self.training):,} training molecules has a label: choose other "
                "labels or another split"
            )
        self._on: dict[torch.device, tuple[MoleculeSet, Tensor]] = {}
        if leads():
            self._warn_about_scores()

    def on(self, device: torch.device) -> tuple[MoleculeSet, Tensor]:
        """The molecules, and the standard deviation of each label, on a device."""
        device = torch.empty(0, device=device).device  # `cuda` as `cuda:0`
        if device not in self._on:
            self._on[device] = self.molecules.to(device), self.deviation.to(device)
        return self._on[device]

    def order(self, first: int, number: int, seed: int) -> Tensor:
        """Training molecules in the order of training: `number` positions from place `first` of an
        endless sequence. Each epoch has every molecule once, in an order that depends only on the
        seed and the epoch."""
        size = len(self.training)
        epochs = range(first // size, -(-(first + number) // size))
        streams = (generator_for(CPU, "molecules", seed, epoch) for epoch in epochs)
        order = torch.cat([torch.randperm(size, generator=stream) for stream in streams])
        start = first - epochs.start * size
        return self.training[order[start : start + number]]

    def _warn_about_scores(self) -> None:
        """Warn about labels without a score in the validation or the test part."""
        names, binary = self.molecules.label_names, self.molecules.kind == "classification"
        for part in ("valid", "test"):
            labels = self.molecules.labels[self.molecules.positions(part)]
            scored = has_both(labels) if binary else (~labels.isnan()).any(0)
            if not scored.all():
                ignored = [names[at] for at in (~scored).nonzero().flatten().tolist()]
                lacking = "both a 0 and a 1" if binary else "a value"
                print(
                    f"The {part} score ignores {len(ignored)} of {len(names)} labels, which do not "
                    f"have {lacking} there: {listed(ignored)}",
                    file=sys.stderr,
                )
