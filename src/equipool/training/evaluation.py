"""A trained network, loaded from its run's directory, and its evaluation, also with other numbers
of inner steps than it was trained with."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import equipool
from equipool import EquilibriumAggregation, FixedSteps
from equipool.diagnostics.independence import quantiles
from equipool.environment import resolve_device
from equipool.training.config import (
    Task,
    TrainingConfig,
    differences,
    run_config,
    task_from_config,
    training_from_config,
)
from equipool.training.devices import autocast, check_extras, products_in
from equipool.training.folder import ConfigMismatchError, RunFolder
from equipool.training.step import evaluation_mode, make_network, weights_of


def load_network(
    run: str | Path, which: str = "best", *, device: str | torch.device = "cpu"
) -> nn.Module:
    """The network of a run, in evaluation mode.

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
    """Load the weights of a run into a network, which gets into evaluation mode. The arguments are
    those of `load_network`."""
    check_extras()
    network.load_state_dict(weights_of(RunFolder(run).read(which).tensors))
    return network.eval()


@contextmanager
def in_precision(precision: str, device: torch.device) -> Iterator[None]:
    """A run's precision inside the block."""
    with products_in(precision), autocast(precision, device):
        yield


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
    """The task and its network on the device, in evaluation mode and in the run's precision."""
    _, task, training = _settings(run)
    place = resolve_device(device)
    network = load_network(run, which, device=place)
    with in_precision(training.precision, place), evaluation_mode(network):
        yield task, network, place


@dataclass(frozen=True)
class AtSteps:
    """The evaluation of a network whose equilibrium layers all take `num_steps` steps.

    `residual` and `residual_99` are the median and the 99 % quantile over all sets of the largest
    component of the gradient where the search ends; `converged` is the share of sets where it is
    within the layer's tolerance.
    """

    num_steps: int
    metrics: dict[str, float | None]  # here and below: None in a file for what is not finite
    residual: float | None
    residual_99: float | None
    converged: float


def evaluate_over_steps(
    run: str | Path,
    numbers: Sequence[int],
    which: str = "best",
    *,
    device: str | torch.device | None = None,
) -> list[AtSteps]:
    """Evaluate a run's network with each of these numbers of inner steps.

    Args:
        run: the run's directory.
        numbers: numbers of steps.
        which: `"best"` or `"last"`.
        device: where to compute; None for a GPU if there is one.
    """
    with _prepared(run, which, device) as (task, network, place):
        if not any(isinstance(module, EquilibriumAggregation) for module in network.modules()):
            raise ValueError(f"{run} has no equilibrium layer, so there are no inner steps to vary")
        return [_at_steps(task, copy.deepcopy(network), number, place) for number in numbers]


def _at_steps(task: Task, network: nn.Module, number: int, device: torch.device) -> AtSteps:
    for layer in network.modules():
        if isinstance(layer, EquilibriumAggregation):
            layer.steps = FixedSteps(number, layer.steps.tolerance)
    residuals: list[Tensor] = []
    converged: list[Tensor] = []
    with equipool.record(diagnostics=True) as solutions:

        def collect(*_: object) -> None:
            for one in solutions:  # sets without elements do not count
                assert one.residual is not None  # diagnostics are on
                assert one.converged is not None
                residuals.append(one.residual[one.occupied].cpu())
                converged.append(one.converged[one.occupied].cpu())
            solutions.clear()

        with network.register_forward_hook(collect):
            metrics: Any = task.evaluate(network, device)
    middle, large = quantiles(torch.cat(residuals))
    return AtSteps(number, metrics, middle, large, float(torch.cat(converged).double().mean()))
