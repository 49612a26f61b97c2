"""A trained network with other numbers of inner steps than it was trained with."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import equipool
from equipool import EquilibriumAggregation, Fixed, NormalStart
from equipool.diagnostics.independence import quantiles
from equipool.training.checkpoint import to_json, write_atomically
from equipool.training.loading import prepared
from equipool.training.progress import Progress, tracking
from equipool.training.task import Task


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
    progress: Progress | None = None,
) -> list[AtSteps]:
    """Evaluate a run's network with each of these numbers of inner steps.

    Args:
        run: the run's directory.
        numbers: numbers of steps.
        which: `"best"` or `"last"`.
        num_starts: number of starts, standard normal, from which predictions are compared; 0 for
            none.
        device: where to compute; None for a GPU if there is one.
        progress: shows how far each evaluation is; None shows nothing.
    """
    found = []
    with prepared(run, which, device) as (task, network, accelerator):
        if not any(isinstance(module, EquilibriumAggregation) for module in network.modules()):
            raise ValueError(f"{run} has no equilibrium layer, so there are no inner steps to vary")
        for number in numbers:
            with tracking(progress or Progress(), f"{number} steps"):
                found.append(_at_steps(task, network, number, num_starts, accelerator.device))
    return found


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
            layer.steps = Fixed(number, layer.steps.tolerance)
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


def over_steps_file(run: str | Path, which: str) -> Path:
    """The file in a run for the evaluations of its `"best"` or `"last"` checkpoint."""
    return Path(run) / f"over-steps-{which}.json"


def write_over_steps(rows: Sequence[AtSteps], file: Path, about: dict[str, Any]) -> None:
    """Write the evaluations, after `about`. Evaluations of the same checkpoint with other numbers
    of steps are kept."""
    found = {row.num_steps: row for row in (*_rows_of(file, about.get("step")), *rows)}
    content = [asdict(found[number]) for number in sorted(found)]
    write_atomically(file, to_json(about | {"over_steps": content}))


DAMAGE = (ValueError, KeyError, TypeError, AttributeError)  # what reading a damaged file raises


def _read(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content


def _rows(content: dict[str, Any]) -> list[AtSteps]:
    return [AtSteps(**row) for row in content["over_steps"]]


def _rows_of(file: Path, step: int | None) -> list[AtSteps]:
    """The evaluations in a file if they are of this training step; none if it is damaged."""
    try:
        content = _read(file)
        return _rows(content) if content.get("step") == step else []
    except (OSError, *DAMAGE):
        return []


def read_over_steps(file: Path) -> list[AtSteps]:
    """Read what `write_over_steps` wrote; empty if there is none."""
    if not file.exists():
        return []
    try:
        return _rows(_read(file))
    except (OSError, *DAMAGE) as error:
        raise ValueError(f"{file} does not hold evaluations over steps: {error}") from error
