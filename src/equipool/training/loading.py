"""A trained network, from its run's directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from equipool.training.checkpoint import Checkpoints
from equipool.training.config import differences_of_data, task_from_config, training_from_config
from equipool.training.devices import Place, dtype_of_weights, products_in
from equipool.training.examination import Examination
from equipool.training.extras import check_extras
from equipool.training.folder import ConfigMismatchError, RunFolder
from equipool.training.statistics import evaluation_mode
from equipool.training.step import make_network
from equipool.training.task import Task


def load_network(
    run: str | Path, which: str = "best", *, device: str | torch.device = "cpu"
) -> nn.Module:
    """The network of a run, in evaluation mode, with the average of its weights where the run
    keeps one.

    The class of the run's task must have been imported. Where the task has data, it must be what
    the run was trained on.

    Args:
        run: the run's directory.
        which: `"best"` by the task's monitor, or `"last"`.
        device: where to put it.
    """
    check_extras()
    config = RunFolder(run).read_config()
    task = task_from_config(config)
    different = differences_of_data(config, task)
    if different:
        raise ConfigMismatchError(
            f"the data is not what {run} was trained on:\n"
            + "\n".join(f"  {line}" for line in different)
        )
    return load_weights(make_network(task), run, which).to(device)


def load_weights(network: nn.Module, run: str | Path, which: str = "best") -> nn.Module:
    """The same network with the weights of a run, in their precision and in evaluation mode. The
    arguments are those of `load_network`."""
    folder = RunFolder(run)
    network.to(dtype_of_weights(training_from_config(folder.read_config()).precision))
    if which == "best" and not (folder.path / "best.json").exists():
        print(f"{run} has no best checkpoint, as no evaluation gave a number: the last one is used")
    found = Checkpoints(folder.path).read(which, print)
    network.load_state_dict(found.tensors["model"])
    average = found.tensors.get("average", {})
    with torch.no_grad():
        for name, value in network.state_dict().items():
            if name in average:
                value.copy_(average[name])
    return network.eval()


def evaluate(
    run: str | Path, which: str = "best", *, device: str | torch.device | None = None
) -> dict[str, float]:
    """The task's evaluation of a run's network, in the run's precision.

    Args:
        run: the run's directory.
        which: `"best"` or `"last"`.
        device: where to compute it; None for a GPU where there is one.
    """
    with _in_place(run, which, device) as (task, network, place):
        return dict(task.evaluate(network, place.device))


def examine(
    run: str | Path, which: str = "best", *, device: str | torch.device | None = None
) -> Examination:
    """The tables and pictures that the task has of a run's network, in the run's precision. The
    arguments are those of `evaluate`."""
    with _in_place(run, which, device) as (task, network, place):
        return task.examine(network, place.device)


@contextmanager
def _in_place(
    run: str | Path, which: str, device: str | torch.device | None
) -> Iterator[tuple[Task, nn.Module, Place]]:
    """The task, and the network where and as it is evaluated."""
    config = RunFolder(run).read_config()
    task, precision = task_from_config(config), training_from_config(config).precision
    place = Place(device, precision)
    network: nn.Module = place.fabric.setup_module(load_network(run, which))
    with products_in(precision), evaluation_mode(network):
        yield task, network, place
