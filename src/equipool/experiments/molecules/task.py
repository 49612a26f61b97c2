"""The paper's third experiment: predicting properties of molecules."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from equipool.baselines import aggregation_from_name
from equipool.environment import leads
from equipool.experiments.common import Aggregation, InnerLoop, StepsSetting
from equipool.experiments.molecules.molecule_set import PARTS, MoleculeSet
from equipool.experiments.molecules.network import (
    CONVOLUTIONS,
    MessageSum,
    MoleculeNetwork,
    Units,
)
from equipool.experiments.molecules.prepare import load_molecules
from equipool.experiments.molecules.scores import has_both, label_losses, label_moments, score
from equipool.experiments.molecules.sources import SCAFFOLD, Kind, MoleculeSource, SmilesTable
from equipool.settings import Count, OneOf, Range, Share
from equipool.tables import listed
from equipool.training import Batch, Loss, Shard, Task, generator_for

TABLE_FIELDS = ("smiles", "labels", "split", "kind")
CPU = torch.device("cpu")
SCORED_BY_PRECISION = ("molpcba", "toxcast")
EVALUATED = 512  # molecules at a time
USUAL_ATOMS = 26  # of a molecule, by which scaled-sum and pna scale

NotNegative = Annotated[float, Range(least=0)]


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
        lacking = "both a 0 and a 1" if binary else "a value"
        for part in ("valid", "test"):
            labels = self.molecules.labels[self.molecules.positions(part)]
            scored = (has_both(labels) if binary else (~labels.isnan()).any(0)).tolist()
            if ignored := [name for name, one in zip(names, scored, strict=True) if not one]:
                text = f"The {part} score ignores {len(ignored)} of {len(names)} labels"
                text += f", which do not have {lacking} there: {listed(ignored)}"
                print(text, file=sys.stderr)


@dataclass(frozen=True)
class MoleculeTask(InnerLoop, Task):
    """Predict properties of molecules with a graph network whose readout is `aggregation`. The
    network is OGB's reference network; the defaults are the paper's unless noted.

    The best checkpoint has the highest validation score: the area under the ROC curve (for molpcba
    and toxcast, the average precision), averaged over the labels; for regression, minus the mean
    absolute error in standard deviations.

    The auxiliary losses have weights here, one for the readout and one for the convolutions. A
    training `aux_weight` would be added for all of them; the command leaves it at 0.

    Args:
        aggregation: readout.
        dataset: molhiv, molpcba, toxcast, tox21 or qm9; none with csv.
        csv: a table of your own, .csv or .csv.gz.
        smiles: SMILES column of the table.
        labels: label columns of the table, separated by commas (default: all other columns).
        split: scaffold, random, or a column with train, valid or test.
        kind: classification (labels 0 and 1) or regression (default: classification if every label
            is 0 or 1).
        convolution: gin or gcn.
        local_aggregation: aggregation of the messages to an atom: sum, equilibrium or location.
        depth: number of convolutions.
        width: channels per atom.
        dropout: dropout rate after each convolution.
        readout_dropout: dropout rate after the readout.
        atom_dropout: share of the atoms hidden from the readout in training.
        batch_size: molecules per batch.
        seed: random seed.
        potential: layer sizes of the potential.
        inner_steps: inner steps of the readout.
        local_potential: layer sizes of the convolutions' potentials (default: those of potential).
        local_steps: inner steps of the convolutions.
        readout_aux_weight: weight of the readout's auxiliary loss.
        local_aux_weight: weight of the convolutions' auxiliary losses.

    Example:
        >>> task = MoleculeTask("attention", convolution="gcn", depth=2, width=16)
        >>> task.make_network(num_labels=1, units=None).head
        Linear(in_features=16, out_features=1, bias=True)
    """

    name: ClassVar[str] = "molecules"
    monitor: ClassVar[str] = "valid_score"
    lower_is_better: ClassVar[bool] = False
    reported: ClassVar[tuple[str, ...]] = ("test_score",)
    capturable: ClassVar[bool] = False  # batches are not padded to one shape

    aggregation: Aggregation = "equilibrium"
    dataset: Annotated[str, OneOf(f"{__package__}.prepare.DATASETS")] | None = "molhiv"
    csv: str | None = None
    smiles: str = "smiles"
    labels: str | None = None
    split: str = SCAFFOLD
    kind: Kind | None = None
    convolution: Annotated[str, OneOf(f"{__package__}.network.CONVOLUTIONS")] = "gin"
    local_aggregation: Literal["sum", "equilibrium", "location"] = "sum"
    depth: Count = 5
    width: Count = 300
    dropout: Share = 0.5
    readout_dropout: Share = 0.0
    atom_dropout: Share = 0.0
    batch_size: Annotated[int, Range(least=2)] = 128
    seed: int = 0
    potential: tuple[int, ...] = (600, 300, 32)
    inner_steps: StepsSetting = 15
    local_potential: tuple[int, ...] | None = None
    local_steps: StepsSetting = 15
    readout_aux_weight: NotNegative = 1.0
    local_aux_weight: NotNegative = 1e-4

    def __post_init__(self) -> None:
        """There is one source, named independently of the working directory."""
        super().__post_init__()
        if self.csv is not None:
            object.__setattr__(self, "csv", str(Path(self.csv).expanduser().absolute()))
            object.__setattr__(self, "dataset", None)  # presets name one
            return
        for name in TABLE_FIELDS:
            usual = getattr(MoleculeTask, name)
            self.expect(name, getattr(self, name) == usual, f"{usual!r} without csv")
        self.expect("dataset", self.dataset is not None, "a name without csv")

    @classmethod
    def paper(cls, aggregation: str = "equilibrium", *, seed: int = 0) -> MoleculeTask:
        """The paper's experiment."""
        return cls(aggregation, dataset="molpcba", batch_size=8, seed=seed)

    @classmethod
    def quick(cls, aggregation: str = "equilibrium", *, seed: int = 0) -> MoleculeTask:
        """A smaller network that trains on molhiv in minutes on two cores, with fewer and longer
        inner steps. Meant for 1,000 steps (four epochs) of Adam at 0.003 with a cosine schedule."""
        solver = "nesterov:learning_rate=0.5,momentum=0.5"
        return cls(
            aggregation, depth=3, width=64, dropout=0.2, seed=seed, potential=(128, 64, 32),
            inner_steps=5, local_steps=5, solver=solver,
            regularizer_weight=0.01, readout_aux_weight=0.01,
        )  # fmt: skip

    def source(self) -> str | SmilesTable:
        """The data set's name, or the table."""
        if self.csv is None:
            assert self.dataset is not None
            return self.dataset
        names = None if self.labels is None else tuple(map(str.strip, self.labels.split(",")))
        return SmilesTable(self.csv, self.smiles, names, self.split, self.kind)

    @cached_property
    def data(self) -> TrainingData:
        """The data, read once by each task."""
        return TrainingData(self.source())

    def facts(self) -> dict[str, Any]:
        """The names and kind of the labels, the number of molecules in each part, and a fingerprint
        of the files."""
        molecules = self.data.molecules
        return {
            "labels": list(molecules.label_names),
            "kind": molecules.kind,
            "molecules": {part: len(molecules.positions(part)) for part in PARTS},
            "fingerprint": self.data.fingerprint,
        }

    def network(self) -> MoleculeNetwork:
        molecules = self.data.molecules
        numbers = molecules.kind == "regression"
        units = Units(self.data.mean, self.data.deviation) if numbers else None
        return self.make_network(molecules.num_labels, units)

    def make_network(self, num_labels: int, units: Units | None) -> MoleculeNetwork:
        """An untrained network for this number of labels. Does not read the data."""
        convolution = CONVOLUTIONS[self.convolution]
        return MoleculeNetwork(
            self.width, num_labels,
            [convolution(self.width, self._message_aggregation()) for _ in range(self.depth)],
            self._atom_aggregation(), units=units, dropout=self.dropout,
            readout_dropout=self.readout_dropout, atom_dropout=self.atom_dropout,
        )  # fmt: skip

    def _message_aggregation(self) -> nn.Module:
        if self.local_aggregation == "sum":
            return MessageSum()
        if self.local_aggregation == "location":
            return aggregation_from_name("location", self.width, self.width)
        potential = self.local_potential or self.potential
        return self.equilibrium_layer(self.width, self.width, potential, self.local_steps)

    def _atom_aggregation(self) -> nn.Module:
        sizes = (self.width, self.width)
        if self.aggregation == "equilibrium":
            return self.equilibrium_layer(*sizes, self.potential, self.inner_steps)
        return aggregation_from_name(self.aggregation, *sizes, set_size=USUAL_ATOMS)

    def batches(self, first_step: int, num_steps: int, device: torch.device, shard: Shard) -> Batch:
        """The positions of the steps' molecules in the data set, `molecules [num_steps, G]`, and
        `present [num_steps]`, the number of labels in the whole batch divided by the number of
        processes."""
        first, number = first_step * self.batch_size, num_steps * self.batch_size
        molecules = self.data.order(first, number, self.seed).view(num_steps, -1)
        present = self.data.num_present[molecules].sum(1).clamp(min=1) / shard.world
        return {"molecules": shard.part(molecules, 1).to(device), "present": present.to(device)}

    def loss(self, network: nn.Module, batch: Batch) -> Loss:
        """The mean loss of the labels plus the weighted auxiliary losses."""
        positions = batch["molecules"]
        molecules, deviation = self.data.on(positions.device)
        prediction = network(molecules.batch(positions))
        labels = molecules.labels[positions]
        losses = label_losses(prediction.labels, labels, molecules.kind, deviation)
        label_loss = losses.sum() / batch["present"]
        total = label_loss + self.readout_aux_weight * prediction.readout_aux_loss
        total = total + self.local_aux_weight * prediction.local_aux_loss
        metrics = {"label_loss": label_loss}
        if self.aggregation == "equilibrium":
            metrics["readout_aux_loss"] = prediction.readout_aux_loss
        if self.local_aggregation == "equilibrium":
            metrics["local_aux_loss"] = prediction.local_aux_loss
        return Loss(total, metrics)

    def evaluate(self, network: nn.Module, device: torch.device) -> dict[str, float]:
        """The score, its components and the mean loss of the validation and the test part."""
        molecules = self.data.molecules
        measure = "average_precision" if self.dataset in SCORED_BY_PRECISION else "roc_auc"
        metrics: dict[str, float] = {}
        for part in ("valid", "test"):
            positions = molecules.positions(part)
            prediction = predict(network, self.data.on(device)[0], positions)
            labels = molecules.labels[positions]
            found = score(molecules, labels, prediction, self.data.deviation, measure)
            metrics |= {f"{part}_{name}": value for name, value in found.items()}
        return metrics


@torch.no_grad()
def predict(network: nn.Module, molecules: MoleculeSet, positions: Tensor | None = None) -> Tensor:
    """The outputs of a network in evaluation mode for all molecules of a set or for those at
    `positions [n]`: `[n, L]`, float32, on the CPU, logits or numbers in the labels' units. The
    molecules are on the network's device."""
    if positions is None:
        positions = torch.arange(len(molecules))
    if not len(positions):
        return torch.zeros(0, molecules.num_labels)
    batches = positions.to(molecules.atom_start.device).split(EVALUATED)
    outputs = [network(molecules.batch(some)).labels.float().cpu() for some in batches]
    return torch.cat(outputs)
