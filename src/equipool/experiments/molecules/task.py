"""The paper's third experiment: properties of molecules by graph networks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from equipool.baselines import AGGREGATIONS, aggregation_from_name
from equipool.experiments.data_folder import data_folder
from equipool.experiments.inner_loop import SHARE, InnerLoop
from equipool.experiments.molecules.data import KNOWN, CsvSource, KeepUnsanitised, split_named
from equipool.experiments.molecules.data.graphs import KINDS
from equipool.experiments.molecules.data.smiles import Unparsable
from equipool.experiments.molecules.data.table import MissingColumnError
from equipool.experiments.molecules.labels import usual_measure
from equipool.experiments.molecules.network import (
    CONVOLUTIONS,
    EquilibriumOfMessages,
    MessageAggregation,
    MoleculeNetwork,
    SumOfMessages,
    VirtualNode,
    make_readout,
)
from equipool.experiments.molecules.packing import Capacity
from equipool.experiments.molecules.predicting import predict
from equipool.experiments.molecules.prepared import Prepared
from equipool.experiments.molecules.storage import send
from equipool.experiments.molecules.task_data import MoleculeData, molecule_data, state_of
from equipool.experiments.parts import StepsSetting
from equipool.training.task import Batch, Loss, Shard, Task

LOCAL_AGGREGATIONS = ("sum", "equilibrium")
POSITIVE = ("depth", "width", "batch_size", "usual_atoms")
NOT_NEGATIVE = ("readout_aux_weight", "local_aux_weight")
SHARES = ("dropout", "readout_dropout", "atom_dropout")
OF_TABLES = ("smiles", "labels", "split", "kind")
SMILES, SPLIT = "smiles", "scaffold"  # of a table where nobody says


@dataclass(frozen=True)
class MoleculeTask(InnerLoop, Task):
    """Predict properties of molecules by a graph network, whose readout is `aggregation`. The
    network is OGB's reference; the rest is as in the paper, unless said otherwise.

    The score that the best checkpoint is chosen by is the area under the ROC curve, for molpcba and
    toxcast the average precision, each the mean over the labels; for numbers it is minus the mean
    absolute error in standard deviations.

    Auxiliary losses are weighed here, one weight for the readout and one for the convolutions. What
    the training settings say with `aux_weight` comes on top, for all of them; the command leaves it
    at 0.

    Args:
        aggregation: a name in `equipool.baselines.AGGREGATIONS`, of the readout.
        dataset: molhiv, molpcba, toxcast, tox21 or qm9; where csv is given, none.
        csv: a table of your own, .csv or .csv.gz.
        smiles: its column of SMILES; None for smiles.
        labels: its columns of labels with commas between them; None for all that are left.
        split: scaffold, random, or the column that says train, valid or test; None for scaffold.
        kind: of its labels, classification (0 and 1) or regression; None for classification where
            all of them are 0 or 1.
        convolution: gin or gcn.
        virtual_node: whether one more node is bound to all atoms of a molecule.
        local_aggregation: sum or equilibrium, of the messages to an atom.
        depth: convolutions.
        width: channels of the atoms.
        dropout: share of the channels that are dropped behind each convolution.
        readout_dropout: share of the channels that are dropped behind the readout.
        atom_dropout: share of the atoms that the readout does not see, in training.
        batch_size: molecules a step, at most.
        seed: of the weights and the order of the training molecules.
        atom_capacity: atoms a step, at most; None for what nearly all batches need.
        bond_capacity: bonds a step, at most, each counted in both directions; None as above.
        train_limit: molecules to train on; None for all of the training part.
        potential: sizes of the potential's layers.
        inner_steps: steps of the readout's inner optimiser.
        local_potential: sizes of the layers of the convolutions' potentials; None for those of the
            readout's.
        local_steps: steps of the convolutions' inner optimisers.
        readout_aux_weight: weight of the readout's auxiliary loss.
        local_aux_weight: weight of the convolutions' auxiliary losses.
        usual_atoms: of a molecule, which scaled-sum divides by and pna measures sizes from.

    Example:
        >>> task = MoleculeTask("attention", convolution="gcn", depth=2, width=16)
        >>> task.make_network(num_labels=1, units=None).head
        Linear(in_features=16, out_features=1, bias=True)
    """

    name: ClassVar[str] = "molecules"
    monitor: ClassVar[str] = "valid_score"
    lower_is_better: ClassVar[bool] = False
    reported: ClassVar[tuple[str, ...]] = ("test_score",)

    aggregation: str = "equilibrium"
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
        for name in POSITIVE:
            self.expect(name, getattr(self, name) >= 1, "1 or more")
        for name in NOT_NEGATIVE:
            self.expect(name, getattr(self, name) >= 0, "0 or more")
        for name in SHARES:
            self.expect(name, 0 <= getattr(self, name) < 1, SHARE)
        for name in ("atom_capacity", "bond_capacity", "train_limit"):
            value = getattr(self, name)
            self.expect(name, value is None or value >= 1, "1 or more, or None")
        for name, known in (
            ("aggregation", list(AGGREGATIONS)),
            ("convolution", list(CONVOLUTIONS)),
            ("local_aggregation", list(LOCAL_AGGREGATIONS)),
        ):
            self.expect(name, getattr(self, name) in known, f"one of {known}")
        self.expect("kind", self.kind in (None, *KINDS), f"one of {list(KINDS)} or None")
        self._check_source()
        met = not self.virtual_node or self.batch_size >= 2
        self.expect("batch_size", met, "2 or more with a virtual node, which is normalised")

    def _check_source(self) -> None:
        """One source, named as it is found from everywhere."""
        if self.csv is not None:
            object.__setattr__(self, "csv", str(Path(self.csv).expanduser().absolute()))
            object.__setattr__(self, "dataset", None)  # presets name one
            return
        for name in OF_TABLES:
            self.expect(
                name, getattr(self, name) is None, "None where csv is not given: it is for a table"
            )
        known = list(KNOWN)
        short = (self.dataset or "").removeprefix("ogbg-")
        self.expect("dataset", short in known, f"one of {known}")
        object.__setattr__(self, "dataset", short)

    @classmethod
    def paper(cls, aggregation: str = "equilibrium", *, seed: int = 0) -> MoleculeTask:
        """The experiment as the paper has it, but for the 1,024 atoms that its batches are padded
        to: eight molecules need a third of that, and padding changes nothing."""
        return cls(aggregation, dataset="molpcba", batch_size=8, seed=seed)

    @classmethod
    def quick(cls, aggregation: str = "equilibrium", *, seed: int = 0) -> MoleculeTask:
        """Smaller, so that minutes on two cores are enough for molhiv, and with longer inner steps,
        as there are fewer. Made for 1,000 steps of Adam at 0.003, four times through the data, that
        end in a cosine."""
        return cls(
            aggregation,
            depth=3,
            width=64,
            dropout=0.2,
            seed=seed,
            potential=(128, 64, 32),
            inner_steps=5,
            local_steps=5,
            solver={"name": "restrained-nesterov", "learning_rate": 0.5, "momentum": 0.5},
            regularizer_weight=0.01,
            readout_aux_weight=0.01,
        )

    def source(self) -> str | CsvSource:
        """The data set's name, or the table."""
        if self.csv is None:
            assert self.dataset is not None
            return self.dataset
        names = None
        if self.labels is not None:
            names = tuple(name.strip() for name in self.labels.split(","))
        split = split_named(self.split or SPLIT)
        return CsvSource(self.csv, self.smiles or SMILES, names, split, self.kind)

    def unparsable(self) -> Unparsable:
        """What becomes of molecules that RDKit refuses, as in the data that is trained on."""
        source = self.source()
        forms = (source,) if isinstance(source, CsvSource) else KNOWN[source].forms
        tables = (form.unparsable for form in forms if isinstance(form, CsvSource))
        return next(tables, KeepUnsanitised())  # OGB's folders have what RDKit has come to refuse

    @cached_property
    def _prepared(self) -> dict[Path, list[Prepared]]:
        """By the data folder. The last is in use; captured steps may read those before it."""
        return {}

    def prepared(self) -> Prepared:
        """The data, and what follows from it: the same from the start of a run to its end."""
        found = self._prepared.get(data_folder())
        return found[-1] if found else self._prepare()

    def _prepare(self) -> Prepared:
        """As `prepared`, but of the data as it is now."""
        source, folder = self.source(), data_folder()
        try:
            data = molecule_data(source, folder, state_of(source, folder))
        except MissingColumnError as error:
            raise ValueError(f"{error}{self._how_chosen(error.column)}") from error
        found = self._prepared.setdefault(folder, [])
        if not found or found[-1].data is not data:
            capacity = (self.atom_capacity, self.bond_capacity)
            measure = usual_measure(self.dataset)
            found.append(
                Prepared(data, self.train_limit, self.batch_size, capacity, self.seed, measure)
            )
        return found[-1]

    def _how_chosen(self, column: str) -> str:
        """How a column of one's own table is chosen."""
        if self.csv is None:
            return ""
        if column == (self.smiles or SMILES):
            return "; --smiles names that of the SMILES"
        if column == self.split:
            return "; --split is a column, or else scaffold or random"
        return "; --labels names those of the labels"

    def facts(self) -> dict[str, Any]:
        """Names and kind of the labels, how many molecules each part has, and a fingerprint of the
        files that they are from."""
        data = self._prepare().data
        molecules = data.molecules
        return {
            "labels": list(molecules.label_names),
            "kind": molecules.kind,
            "molecules": {part: len(positions) for part, positions in molecules.split.items()},
            "fingerprint": data.fingerprint,
        }

    def data(self) -> MoleculeData:
        """The data set, which is read once."""
        return self.prepared().data

    def capacity(self) -> Capacity:
        """What a batch of training can hold."""
        return self.prepared().capacity

    def network(self) -> MoleculeNetwork:
        labels = self.prepared().labels(torch.device("cpu"))
        return self.make_network(self.data().molecules.num_labels, labels.units())

    def make_network(self, num_labels: int, units: nn.Module | None) -> MoleculeNetwork:
        """The network at its start, for so many labels in these units; the data is not read."""
        convolution = CONVOLUTIONS[self.convolution]
        virtual_node = None
        if self.virtual_node:
            virtual_node = VirtualNode(self.width, self.depth - 1, self.dropout)
        return MoleculeNetwork(
            self.width,
            num_labels,
            [convolution(self.width, self._of_messages()) for _ in range(self.depth)],
            make_readout(self._of_atoms()),
            units=units,
            virtual_node=virtual_node,
            dropout=self.dropout,
            readout_dropout=self.readout_dropout,
            atom_dropout=self.atom_dropout,
        )

    def _of_messages(self) -> MessageAggregation:
        if self.local_aggregation == "sum":
            return SumOfMessages()
        potential = self.potential if self.local_potential is None else self.local_potential
        layer = self.equilibrium_layer(self.width, self.width, potential, self.local_steps)
        return EquilibriumOfMessages(layer)

    def _of_atoms(self) -> nn.Module:
        if self.aggregation == "equilibrium":
            return self.equilibrium_layer(self.width, self.width, self.potential, self.inner_steps)
        return aggregation_from_name(
            self.aggregation, self.width, self.width, set_size=self.usual_atoms
        )

    def batches(self, first_step: int, num_steps: int, device: torch.device, shard: Shard) -> Batch:
        """What the storage needs to put the steps' molecules together, and `present [num_steps]`,
        a process's share of the labels that the joined batch has."""
        prepared = self.prepared()
        molecules = prepared.epochs.batches(first_step, num_steps)
        own = shard.part(molecules, 1)
        if self.virtual_node and own.shape[1] < 2:
            raise ValueError(
                f"batch_size is {self.batch_size} in {shard.world} processes, expected 2 or more "
                "in each with a virtual node, which is normalised"
            )
        data = prepared.data
        present = torch.where(molecules < 0, 0, data.present[molecules]).sum(1).clamp(min=1)
        pieces = data.storage(_exact(device)).pieces(own, prepared.capacity)
        return pieces | {"present": send(present / shard.world, device)}

    def loss(self, network: nn.Module, batch: Batch) -> Loss:
        """The labels' mean loss, and the auxiliary losses."""
        device, prepared = batch["present"].device, self.prepared()
        found = prepared.data.storage(device).labelled(batch, prepared.capacity)
        labels = prepared.labels(device)
        prediction = network(found.molecules)
        of_labels = labels.losses(prediction.labels, found.labels).sum() / batch["present"]
        total = (
            of_labels
            + self.readout_aux_weight * prediction.readout_aux_loss
            + self.local_aux_weight * prediction.local_aux_loss
        )
        metrics = {"label_loss": of_labels}
        if self.aggregation == "equilibrium":
            metrics["readout_aux_loss"] = prediction.readout_aux_loss
        if self.local_aggregation == "equilibrium":
            metrics["local_aux_loss"] = prediction.local_aux_loss
        return Loss(total, metrics)

    @torch.no_grad()
    def evaluate(self, network: nn.Module, device: torch.device) -> dict[str, float]:
        """For the validation and the test part: the score, what it is made of, and the mean loss.
        Every molecule is predicted once."""
        prepared = self.prepared()
        data, labels = prepared.data, prepared.labels(torch.device("cpu"))
        storage = data.storage(_exact(device))
        metrics: dict[str, float] = {}
        for part in ("valid", "test"):
            positions = data.molecules.split[part]
            prediction = predict(network, storage, data.molecules, positions)
            found = labels.measures(prediction, data.molecules.labels[positions])
            metrics |= {f"{part}_{name}": value for name, value in found.items()}
        return metrics


def _exact(device: torch.device) -> torch.device:
    """With its number, as tensors name it."""
    return torch.empty(0, device=device).device
