"""What influence is measured on: a small network for the median, trained here, and the networks of
runs of the median, of bags and of molecules."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import typer
from torch import Tensor, nn

from equipool.experiments.bags import BagsTask
from equipool.experiments.data import generator_for
from equipool.experiments.median import MedianTask
from equipool.experiments.median.data import sample_sets
from equipool.experiments.median.network import MedianNetwork
from equipool.experiments.molecules import MoleculeTask
from equipool.experiments.molecules.batching import Capacity
from equipool.experiments.molecules.storage import assemble
from equipool.experiments.presets import RECIPES
from equipool.recipes import AUX_WEIGHT
from equipool.training import RunFolder, TrainingConfig, fit, load_network, read_record
from equipool.training.config import task_from_config

CPU = torch.device("cpu")
RECORD = "record.json"
LAYER_SETTINGS = ("scaling", "regularizer_weight", "solver", "differentiation", "inner_steps")


@dataclass(frozen=True, eq=False)
class Subject:
    """A trained pooling layer, the network after it, whose first output is looked at, and padded
    sets `x [B, L, C]` as the layer sees them, with a `mask [B, L]` of the real elements.

    Args:
        is_logit: whether the output is a logit, whose sign is what the network predicts.
    """

    layer: nn.Module
    head: nn.Module
    x: Tensor
    mask: Tensor
    is_logit: bool = False

    def output(self, y: Tensor) -> Tensor:
        """The output for pooled sets, `[rows, K] -> [rows]`."""
        found: Tensor = self.head(y)[:, 0]
        return found

    def predict(self, mask: Tensor) -> Tensor:
        """The output for these elements alone, `[B, L] -> [B]`."""
        return self.output(self.layer(self.x, mask=mask))

    def first(self, num_sets: int) -> Subject:
        """The same with the first sets alone."""
        mask = self.mask[:num_sets]
        length = max(int(mask.sum(1).max()), 1)  # real elements come first
        return replace(self, x=self.x[:num_sets, :length], mask=mask[:, :length])

    def double(self) -> Subject:
        """A copy in float64."""
        layer, head = (copy.deepcopy(part).double().eval() for part in (self.layer, self.head))
        return replace(self, layer=layer, head=head, x=self.x.double())


def trained_median(
    aggregation: str, num_sets: int, set_size: int, steps: int, seed: int
) -> tuple[Subject, dict[str, Any]]:
    """A small network for the median, trained with the settings that converge, and how."""
    recipe = {name: RECIPES["converging"][name] for name in LAYER_SETTINGS}
    task = MedianTask(
        aggregation, embedding=16, batch_size=16, seed=seed, set_size=set_size, width=48,
        potential_output=8, evaluation_sets=1000, **recipe,
    )  # fmt: skip
    config = TrainingConfig(
        steps=steps, learning_rate=3e-3, schedule="cosine", warmup_steps=min(100, steps),
        aux_weight=AUX_WEIGHT, evaluate_every=steps,
    )  # fmt: skip
    fitted = fit(task, config, CPU)
    about = {"task": task.name, "fields": asdict(task), "training": asdict(config),
             "metrics": fitted.record.metrics}  # fmt: skip
    return median_subject(task, fitted.network.eval(), num_sets), about


def subject_of_run(run: Path, num_sets: int) -> tuple[Subject, dict[str, Any]]:
    """The best network of a run with up to so many sets that it was not trained on, and how it was
    trained."""
    config = RunFolder(run).read_config()
    task = task_from_config(config)
    if task.name not in MAKERS:
        raise typer.BadParameter(f"{run} is a run of {task.name}, expected {', '.join(MAKERS)}")
    subject = MAKERS[task.name](task, load_network(run), num_sets)
    about = {"run": run.name} | {name: config[name] for name in ("task", "fields", "training")}
    if (run / RECORD).exists():
        record = read_record(run / RECORD)
        about["metrics"] = record.best["metrics"] if record.best else record.metrics
    return subject, about


@torch.no_grad()
def median_subject(task: MedianTask, network: nn.Module, num_sets: int) -> Subject:
    """Sets that no training has seen."""
    assert isinstance(network, MedianNetwork)
    generator = generator_for(CPU, "median", "influence")
    numbers = sample_sets((num_sets,), task.set_size, generator)[0]
    x = network.embedding(numbers.unsqueeze(-1))
    return Subject(network.aggregation, network.head, x, torch.ones_like(numbers, dtype=torch.bool))


@torch.no_grad()
def bags_subject(task: BagsTask, network: Any, num_sets: int) -> Subject:
    """Encoded elements of the test bags of the run's fold."""
    found = task.training_bags(CPU)
    bags = found.bags.arrays(some_of(found.split.test, num_sets))
    x, mask = padded([network.encoder(torch.from_numpy(bag)) for bag in bags])
    return Subject(network.aggregation, network.head, x, mask, is_logit=True)


@torch.no_grad()
def molecules_subject(task: MoleculeTask, network: Any, num_sets: int) -> Subject:
    """Atoms of the test molecules after the last convolution. Without an atom, the readout does not
    see it, but its neighbours keep what it told them."""
    data = task.data()
    molecules = data.molecules
    positions = some_of(molecules.split["test"], num_sets)
    sizes, bonds = molecules.num_atoms[positions], int(molecules.num_bonds[positions].sum())
    capacity = Capacity(len(positions), max(int(sizes.sum()), 1), max(bonds, 1))
    batch = assemble(data.arrays, positions, capacity)
    x, mask = padded(network.embed(batch)[batch.atom_mask].split(sizes.tolist()))
    head = nn.Sequential(network.head, network.units)
    return Subject(network.readout.aggregation, head, x, mask, molecules.kind == "classification")


MAKERS: dict[str, Callable[[Any, Any, int], Subject]] = {
    MedianTask.name: median_subject,
    BagsTask.name: bags_subject,
    MoleculeTask.name: molecules_subject,
}


def some_of(positions: Tensor, number: int) -> Tensor:
    """Some of these positions, always the same."""
    order = torch.randperm(len(positions), generator=generator_for(CPU, "influence", "sets"))
    return positions[order[:number]]


def padded(sets: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Sets `[n_i, C]` as `x [B, L, C]` and `mask [B, L]`.

    Example:
        >>> padded([torch.ones(1, 2), torch.ones(3, 2)])[1].int()
        tensor([[1, 0, 0],
                [1, 1, 1]], dtype=torch.int32)
    """
    x = nn.utils.rnn.pad_sequence(list(sets), batch_first=True)
    sizes = torch.tensor([len(elements) for elements in sets])
    return x, torch.arange(x.shape[1]) < sizes.unsqueeze(-1)
