"""A trained network, loaded from its run's directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from equipool.training.artifacts import Examination
from equipool.training.checkpoint import Checkpoints
from equipool.training.config import (
    TrainingConfig,
    differences_of_data,
    task_from_config,
    training_from_config,
)
from equipool.training.devices import Accelerator, check_extras, dtype_of_weights, products_in
from equipool.training.folder import ConfigMismatchError, RunFolder
from equipool.training.progress import Progress, tracking
from equipool.training.step import evaluation_mode, make_network
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
    check_extras()
    config, task, _ = _settings(run)
    if different := differences_of_data(config, task):
        lines = "".join(f"\n  {line}" for line in different)
        raise ConfigMismatchError(f"the data is not what {run} was trained on:{lines}")
    return load_weights(make_network(task), run, which).to(device)


def load_weights(network: nn.Module, run: str | Path, which: str = "best") -> nn.Module:
    """Load the weights of a run into a network, which gets their precision and evaluation mode.
    The arguments are those of `load_network`."""
    folder = RunFolder(run)
    network.to(dtype_of_weights(training_from_config(folder.read_config()).precision))
    if which == "best" and not (folder.path / "best.json").exists():
        print(f"{run} has no best checkpoint because no evaluation gave a number: using the last")
    found = Checkpoints(folder.path).read(which, print)
    network.load_state_dict(found.tensors["model"])
    average = found.tensors.get("average", {})
    with torch.no_grad():
        for name, value in network.state_dict().items():
            if name in average:
                value.copy_(average[name])
    return network.eval()


def evaluate(
    run: str | Path, which: str = "best", *,
    device: str | torch.device | None = None, progress: Progress | None = None,
) -> dict[str, float]:  # fmt: skip
    """The metrics of a run's network by the task's evaluation, in the run's precision.

    Args:
        run: the run's directory.
        which: `"best"` or `"last"`.
        device: where to compute; None for a GPU if there is one.
        progress: shows how far the evaluation is; None shows nothing.
    """
    shown = tracking(progress or Progress(), Path(run).name)
    with prepared(run, which, device) as (task, network, accelerator), shown:
        return dict(task.evaluate(network, accelerator.device))


def examine(
    run: str | Path, which: str = "best", *, device: str | torch.device | None = None
) -> Examination:
    """The task's tables and pictures of a run's network, in the run's precision. The arguments are
    those of `evaluate`."""
    with prepared(run, which, device) as (task, network, accelerator):
        return task.examine(network, accelerator.device)


def _settings(run: str | Path) -> tuple[dict[str, Any], Task, TrainingConfig]:
    """The config of a run, and the task and training settings in it."""
    folder = RunFolder(run)
    config = folder.read_config()
    try:
        return config, task_from_config(config), training_from_config(config)
    except ValueError as error:
        raise ValueError(f"{folder.config} cannot be used: {error}") from error


@contextmanager
def prepared(
    run: str | Path, which: str, device: str | torch.device | None
) -> Iterator[tuple[Task, nn.Module, Accelerator]]:
    """The task and its network, on the device, in its precision and in evaluation mode."""
    _, task, training = _settings(run)
    accelerator = Accelerator(device, training.precision)
    network: nn.Module = accelerator.fabric.setup_module(load_network(run, which))
    with products_in(training.precision), evaluation_mode(network):
        yield task, network, accelerator
