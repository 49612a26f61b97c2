"""The paper's third experiment: predicting properties of molecules."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from equipool.baselines import AGGREGATIONS, aggregation_from_name
from equipool.experiments.data import data_folder
from equipool.experiments.inner_loop import Aggregation, InnerLoop, StepsSetting
from equipool.experiments.molecules.data import DATASETS, CsvSource
from equipool.experiments.molecules.data.molecule_set import KINDS
from equipool.experiments.molecules.data.splits import split_named
from equipool.experiments.molecules.data.table import MissingColumnError
from equipool.experiments.molecules.dataset import MoleculeData, TrainingData, data_of
from equipool.experiments.molecules.labels import usual_measure
from equipool.experiments.molecules.network.layers import (
    CONVOLUTIONS,
    EquilibriumOfMessages,
    SumOfMessages,
    VirtualNode,
)
from equipool.experiments.molecules.network.network import MoleculeNetwork, Readout
from equipool.experiments.molecules.storage import predict, send
from equipool.training.task import Batch, Loss, Shard, Task

CHOICES = {
    "aggregation": list(AGGREGATIONS),
    "convolution": list(CONVOLUTIONS),
    "local_aggregation": ["sum", "equilibrium"],
}
TABLE_FIELDS = ("smiles", "labels", "split", "kind")
SMILES, SPLIT = "smiles", "scaffold"  # defaults for a table


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
        smiles: SMILES column of the table (default: smiles).
        labels: label columns of the table, separated by commas (default: all other columns).
        split: scaffold, random, or a column with train, valid or test (default: scaffold).
        kind: classification (labels 0 and 1) or regression (default: classification if every label
            is 0 or 1).
        convolution: gin or gcn.
        virtual_node: whether to connect an extra node to all atoms of a molecule.
        local_aggregation: aggregation of the messages to an atom, sum or equilibrium.
        depth: number of convolutions.
        width: channels per atom.
        dropout: dropout rate after each convolution.
        readout_dropout: dropout rate after the readout.
        atom_dropout: share of the atoms hidden from the readout in training.
        batch_size: largest batch size, in molecules.
        seed: random seed.
        atom_capacity: largest number of atoms per batch (default: enough for nearly all batches).
        bond_capacity: largest number of bonds per batch, counted in both directions (default:
            enough for nearly all batches).
        train_limit: number of molecules to train on (default: all training molecules).
        potential: layer sizes of the potential.
        inner_steps: inner steps of the readout.
        local_potential: layer sizes of the convolutions' potentials (default: those of potential).
        local_steps: inner steps of the convolutions.
        readout_aux_weight: weight of the readout's auxiliary loss.
        local_aux_weight: weight of the convolutions' auxiliary losses.
        usual_atoms: typical atoms per molecule, by which scaled-sum and pna scale.

    Example:
        >>> task = MoleculeTask("attention", convolution="gcn", depth=2, width=16)
        >>> task.make_network(num_labels=1, units=None).head
        Linear(in_features=16, out_features=1, bias=True)
    """

    name: ClassVar[str] = "molecules"
    monitor: ClassVar[str] = "valid_score"
    lower_is_better: ClassVar[bool] = False
    reported: ClassVar[tuple[str, ...]] = ("test_score",)

    aggregation: Aggregation = "equilibrium"
    dataset: str | None = "molhiv"
    csv: str | None = None
    smiles: str | None = None
    labels: str | None = None
    split: str | None = None
    kind: str | None = None
    convolution: str = "gin"
    virtual_node: bool = False
    local_aggregation: str = "sum"
    depth: int = 5
    width: int = 300
    dropout: float = 0.5
    readout_dropout: float = 0.0
    atom_dropout: float = 0.0
    batch_size: int = 128
    seed: int = 0
    atom_capacity: int | None = None
    bond_capacity: int | None = None
    train_limit: int | None = None
    potential: tuple[int, ...] = (600, 300, 32)
    inner_steps: StepsSetting = 15
    local_potential: tuple[int, ...] | None = None
    local_steps: StepsSetting = 15
    readout_aux_weight: float = 1.0
    local_aux_weight: float = 1e-4
    usual_atoms: int = 26

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("depth", "width", "batch_size", "usual_atoms"):
            self.expect(name, getattr(self, name) >= 1, "1 or more")
        for name in ("readout_aux_weight", "local_aux_weight"):
            self.expect(name, getattr(self, name) >= 0, "0 or more")
        for name in ("dropout", "readout_dropout", "atom_dropout"):
            self.expect(name, 0 <= getattr(self, name) < 1, "at least 0 and less than 1")
        for name in ("atom_capacity", "bond_capacity", "train_limit"):
            value = getattr(self, name)
            self.expect(name, value is None or value >= 1, "1 or more, or None")
        for name, known in CHOICES.items():
            self.expect(name, getattr(self, name) in known, f"one of {known}")
        self.expect("kind", self.kind in (None, *KINDS), f"one of {list(KINDS)} or None")
        self._check_source()
        met = not self.virtual_node or self.batch_size >= 2
        self.expect("batch_size", met, "2 or more with a virtual node, for its batch normalisation")

    def _check_source(self) -> None:
        """There is one source, named independently of the working directory."""
        if self.csv is not None:
            object.__setattr__(self, "csv", str(Path(self.csv).expanduser().absolute()))
            object.__setattr__(self, "dataset", None)  # presets name one
            return
        for name in TABLE_FIELDS:
            self.expect(name, getattr(self, name) is None, "None without csv")
        short = (self.dataset or "").removeprefix("ogbg-")
        self.expect("dataset", short in DATASETS, f"one of {list(DATASETS)}")
        object.__setattr__(self, "dataset", short)

    @classmethod
    def paper(cls, aggregation: str = "equilibrium", *, seed: int = 0) -> MoleculeTask:
        """The paper's experiment. Batches are not padded to 1,024 atoms as in the paper: eight
        molecules need a third of that, and padding does not change results."""
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

    def source(self) -> str | CsvSource:
        """The data set's name, or the table."""
        if self.csv is None:
            assert self.dataset is not None
            return self.dataset
        names = None if self.labels is None else tuple(self.labels.split(","))
        split = split_named(self.split or SPLIT)
        return CsvSource(self.csv, self.smiles or SMILES, names, split, self.kind)

    def keeps_unsanitised(self) -> bool:
        """Whether the training data includes molecules that RDKit rejects."""
        source = self.source()
        forms = (source,) if isinstance(source, CsvSource) else DATASETS[source].forms
        tables = (form.keep_unsanitised for form in forms if isinstance(form, CsvSource))
        return next(tables, True)  # OGB's folders include them

    @cached_property
    def _loaded(self) -> dict[Path, list[TrainingData]]:
        """By data folder. The last one is in use; captured steps may still read earlier ones."""
        return {}

    def training_data(self) -> TrainingData:
        """The data, and what follows from it. It does not change during a run."""
        loaded = self._loaded.get(data_folder())
        return loaded[-1] if loaded else self._load()

    def _load(self) -> TrainingData:
        """`training_data`, read again if the files have changed."""
        try:
            data = data_of(self.source())
        except MissingColumnError as error:
            raise ValueError(f"{error}{self._column_advice(error.column)}") from error
        loaded = self._loaded.setdefault(data_folder(), [])
        if not loaded or loaded[-1].data is not data:
            capacity = (self.atom_capacity, self.bond_capacity)
            found = (data, self.train_limit, self.batch_size, capacity, self.seed)
            loaded.append(TrainingData(*found, usual_measure(self.dataset)))
        return loaded[-1]

    def _column_advice(self, column: str) -> str:
        """How to choose a missing column of a table."""
        if self.csv is None:
            return ""
        advice = {
            self.split: "--split takes a column, scaffold or random",
            self.smiles or SMILES: "choose the SMILES column with --smiles",
        }
        return f"; {advice.get(column, 'choose the label columns with --labels')}"

    def facts(self) -> dict[str, Any]:
        """The names and kind of the labels, the number of molecules in each part, and a fingerprint
        of the files."""
        data = self._load().data
        molecules = data.molecules
        return {
            "labels": list(molecules.label_names),
            "kind": molecules.kind,
            "molecules": {part: len(positions) for part, positions in molecules.split.items()},
            "fingerprint": data.fingerprint,
        }

    def data(self) -> MoleculeData:
        """The data set."""
        return self.training_data().data

    def network(self) -> MoleculeNetwork:
        labels = self.training_data().labels(torch.device("cpu"))
        return self.make_network(self.data().molecules.num_labels, labels.units())

    def make_network(self, num_labels: int, units: nn.Module | None) -> MoleculeNetwork:
        """An untrained network for this number of labels. Does not read the data."""
        virtual_node, convolution = None, CONVOLUTIONS[self.convolution]
        if self.virtual_node:
            virtual_node = VirtualNode(self.width, self.depth - 1, self.dropout)
        return MoleculeNetwork(
            self.width, num_labels,
            [convolution(self.width, self._message_aggregation()) for _ in range(self.depth)],
            Readout(self._atom_aggregation()),
            units=units, virtual_node=virtual_node, dropout=self.dropout,
            readout_dropout=self.readout_dropout, atom_dropout=self.atom_dropout,
        )  # fmt: skip

    def _message_aggregation(self) -> nn.Module:
        if self.local_aggregation == "sum":
            return SumOfMessages()
        potential = self.potential if self.local_potential is None else self.local_potential
        layer = self.equilibrium_layer(self.width, self.width, potential, self.local_steps)
        return EquilibriumOfMessages(layer)

    def _atom_aggregation(self) -> nn.Module:
        if self.aggregation == "equilibrium":
            return self.equilibrium_layer(self.width, self.width, self.potential, self.inner_steps)
        sizes = (self.width, self.width)
        return aggregation_from_name(self.aggregation, *sizes, set_size=self.usual_atoms)

    def batches(self, first_step: int, num_steps: int, device: torch.device, shard: Shard) -> Batch:
        """What the storage sends for the steps, and `present [num_steps]`: the number of labels in
        the whole batch divided by the number of processes."""
        training = self.training_data()
        molecules = training.epochs.batches(first_step, num_steps)
        own = shard.part(molecules, 1)
        if self.virtual_node and own.shape[1] < 2:
            found = f"batch_size is {self.batch_size} in {shard.world} processes"
            raise ValueError(f"{found}, expected 2 or more in each with a virtual node")
        data = training.data
        present = torch.where(molecules < 0, 0, data.num_present[molecules]).sum(1).clamp(min=1)
        sent = data.storage(_with_index(device)).send(own, training.capacity)
        return sent | {"present": send(present / shard.world, device)}

    def loss(self, network: nn.Module, batch: Batch) -> Loss:
        """The mean loss of the labels plus the weighted auxiliary losses."""
        device, training = batch["present"].device, self.training_data()
        found = training.data.storage(device).batch(batch, training.capacity)
        labels = training.labels(device)
        prediction = network(found.molecules)
        label_loss = labels.losses(prediction.labels, found.labels).sum() / batch["present"]
        total = label_loss + self.readout_aux_weight * prediction.readout_aux_loss
        total = total + self.local_aux_weight * prediction.local_aux_loss
        metrics = {"label_loss": label_loss}
        if self.aggregation == "equilibrium":
            metrics["readout_aux_loss"] = prediction.readout_aux_loss
        if self.local_aggregation == "equilibrium":
            metrics["local_aux_loss"] = prediction.local_aux_loss
        return Loss(total, metrics)

    @torch.no_grad()
    def evaluate(self, network: nn.Module, device: torch.device) -> dict[str, float]:
        """The score, its components and the mean loss of the validation and the test part."""
        training = self.training_data()
        data, labels = training.data, training.labels(torch.device("cpu"))
        storage = data.storage(_with_index(device))
        metrics: dict[str, float] = {}
        for part in ("valid", "test"):
            positions = data.molecules.split[part]
            prediction = predict(network, storage, data.molecules, positions)
            found = labels.measures(prediction, data.molecules.labels[positions])
            metrics |= {f"{part}_{name}": value for name, value in found.items()}
        return metrics


def _with_index(device: torch.device) -> torch.device:
    """`cuda` as `cuda:0`, as tensors name it."""
    return torch.empty(0, device=device).device
