"""A trained network, loaded from its run's directory, and its evaluation, also with other numbers
of inner steps than it was trained with."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import equipool
from equipool import EquilibriumAggregation, FixedSteps, NormalStart
from equipool.diagnostics.independence import quantiles
from equipool.files import FileError
from equipool.training.checkpoint import ConfigMismatchError, RunFolder
from equipool.training.config import (
    TrainingConfig,
    differences,
    run_config,
    task_from_config,
    training_from_config,
)
from equipool.training.devices import Accelerator, check_extras, dtype_of_weights, products_in
from equipool.training.step import evaluation_mode, make_network, part_of
from equipool.training.task import Task


def load_network(
    run: str | Path, which: str = "best", *, device: str | torch.device = "cpu"
) -> nn.Module:
    """The network of a run, in evaluation mode, with averaged weights if the run keeps them.

    The class of the run's task must have been imported. If the task has data, it must be the data
    that the run was trained on.

    Args:
        run: the run's directory.
        which: `"best"` by the task's monitor, or `"last"`.
        device: where to put it.
    """
    config, task, training = _settings(run)
    now = run_config(task, training)
    data = ({"data": one.get("data", {})} for one in (config, now))
    if different := differences(*data):
        lines = "".join(f"\n  {line}" for line in different)
        raise ConfigMismatchError(f"the data is not what {run} was trained on:{lines}")
    return load_weights(make_network(task), run, which).to(device)


def load_weights(network: nn.Module, run: str | Path, which: str = "best") -> nn.Module:
    """Load the weights of a run into a network, which gets their precision and evaluation mode.
    The arguments are those of `load_network`."""
    check_extras()
    folder = RunFolder(run)
    network.to(dtype_of_weights(training_from_config(folder.read_config()).precision))
    found = folder.read(which, print)
    if which == "best" and found.best is None:
        print(f"{run} has no best checkpoint because no evaluation gave a number: using the last")
    network.load_state_dict(part_of(found.tensors, "model"))
    average = part_of(found.tensors, "average")
    with torch.no_grad():
        for name, value in network.state_dict().items():
            if name in average:
                value.copy_(average[name])
    return network.eval()


def evaluate(
    run: str | Path, which: str = "best", *,
    device: str | torch.device | None = None, results: str | Path | None = None,
) -> dict[str, float]:  # fmt: skip
    """The metrics of a run's network by the task's evaluation, in the run's precision.

    Args:
        run: the run's directory.
        which: `"best"` or `"last"`.
        device: where to compute; None for a GPU if there is one.
        results: folder for the task's tables, if it has any; None writes nothing.
    """
    with _prepared(run, which, device) as (task, network, place):
        metrics = dict(task.evaluate(network, place))
        if results is not None:
            task.write_results(network, place, Path(results))
        return metrics


def _settings(run: str | Path) -> tuple[dict[str, Any], Task, TrainingConfig]:
    """The config of a run, and the task and training settings in it."""
    folder = RunFolder(run)
    config = folder.read_config()
    try:
        return config, task_from_config(config), training_from_config(config)
    except ValueError as error:
        raise ValueError(f"{folder.config} cannot be used: {error}") from error


@contextmanager
def _prepared(
    run: str | Path, which: str, device: str | torch.device | None
) -> Iterator[tuple[Task, nn.Module, torch.device]]:
    """The task and its network, on the device, in its precision and in evaluation mode."""
    _, task, training = _settings(run)
    accelerator = Accelerator(device, training.precision)
    network = accelerator.place(load_network(run, which))
    with products_in(training.precision), evaluation_mode(network):
        yield task, network, accelerator.device


@dataclass(frozen=True)
class AtSteps:
    """The evaluation of a network whose equilibrium layers all take `num_steps` steps.

    `residual` and `residual_99` are the median and the 99 % quantile over all sets of the largest
    component of the gradient where the search ends; `converged` is the share of sets where it is
    within the layer's tolerance. `spread` is the root mean squared distance between predictions
    from random starts and their mean; None without random starts.
    """

    num_steps: int
    metrics: dict[str, float | None]  # here and below: None in a file for what is not finite
    residual: float | None
    residual_99: float | None
    converged: float
    spread: float | None = None


def evaluate_over_steps(
    run: str | Path,
    numbers: Sequence[int],
    which: str = "best",
    *,
    num_starts: int = 0,
    device: str | torch.device | None = None,
) -> list[AtSteps]:
    """Evaluate a run's network with each of these numbers of inner steps.

    Args:
        run: the run's directory.
        numbers: numbers of steps.
        which: `"best"` or `"last"`.
        num_starts: number of starts, standard normal, from which predictions are compared; 0 for
            none.
        device: where to compute; None for a GPU if there is one.
    """
    with _prepared(run, which, device) as (task, network, place):
        if not any(isinstance(module, EquilibriumAggregation) for module in network.modules()):
            raise ValueError(f"{run} has no equilibrium layer, so there are no inner steps to vary")
        return [_at_steps(task, network, number, num_starts, place) for number in numbers]


def _at_steps(
    task: Task, network: nn.Module, number: int, num_starts: int, device: torch.device
) -> AtSteps:
    calls = _Calls()
    metrics: Any = calls.evaluate(task, _with_steps(network, number), device)
    middle, large = quantiles(torch.cat(calls.residuals))
    converged = float(torch.cat(calls.converged).double().mean())
    spread = _spread(task, network, number, num_starts, device) if num_starts else None
    return AtSteps(number, metrics, middle, large, converged, spread)


def _spread(
    task: Task, network: nn.Module, number: int, num_starts: int, device: torch.device
) -> float:
    found = []
    for seed in range(num_starts):
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            calls = _Calls()
            calls.evaluate(task, _with_steps(network, number, random_start=True), device)
        found.append(torch.cat(calls.predictions))
    predictions = torch.stack(found)
    return float((predictions - predictions.mean(0)).square().mean().sqrt())


def _with_steps(network: nn.Module, number: int, random_start: bool = False) -> nn.Module:
    """A copy of the network whose layers take so many steps."""
    network = copy.deepcopy(network)
    for layer in network.modules():
        if isinstance(layer, EquilibriumAggregation):
            layer.steps = FixedSteps(number, layer.steps.tolerance)
            if random_start:
                layer.start = NormalStart(layer.out_channels).train()
    return network


@dataclass
class _Calls:
    """What the calls of a network gave, of sets that have elements."""

    residuals: list[Tensor] = field(default_factory=list)
    converged: list[Tensor] = field(default_factory=list)
    predictions: list[Tensor] = field(default_factory=list)

    def evaluate(self, task: Task, network: nn.Module, device: torch.device) -> dict[str, float]:
        """The task's metrics of the network."""
        with equipool.record(diagnostics=True) as solutions:

            def add(module: nn.Module, arguments: Any, output: Any) -> None:
                for one in solutions:
                    assert one.residual is not None  # diagnostics are on
                    assert one.converged is not None
                    self.residuals.append(one.residual[one.occupied].cpu())
                    self.converged.append(one.converged[one.occupied].cpu())
                labels = output if isinstance(output, Tensor) else output[0]
                if solutions and len(solutions[-1].occupied) == len(labels):
                    labels = labels[solutions[-1].occupied]  # the others fill up a batch
                self.predictions.append(labels.double().cpu())
                solutions.clear()

            with network.register_forward_hook(add):
                return dict(task.evaluate(network, device))


def read_over_steps(file: Path) -> list[AtSteps]:
    """Read what `equipool evaluate --over-steps` stored; empty if there is no file."""
    if not file.exists():
        return []
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return [AtSteps(**row) for row in content["over_steps"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileError(f"{file} does not hold evaluations over steps: {error}") from error
