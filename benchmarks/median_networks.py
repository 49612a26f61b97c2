"""Measures what trained networks of the median do.

    python docs/figures/median_networks.py runs/median/*-embedding-16-seed-*

writes records/median-networks, one file per run, from which median.py makes tables: how much the
loss varies from batch to batch while the weights do not change, and, for equilibrium aggregation,
what each step of the search does, also beyond the steps of training. It takes a few minutes per run
on two cores.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor

from equipool import EquilibriumAggregation
from equipool.environment import hardware, now, versions
from equipool.experiments.median import MedianTask
from equipool.experiments.median.data import held_out_sets
from equipool.experiments.median.network import MedianNetwork
from equipool.training import count_spikes, make_network
from equipool.training.checkpoint import to_json, write_atomically
from equipool.training.config import task_from_config
from equipool.training.folder import RunFolder
from equipool.training.loading import load_weights

RECORDS = Path(__file__).parents[2] / "records" / "median-networks"

SETS, SEARCHED, AT_ONCE = 10_000, 1_000, 500
STEPS = 20  # of the search, on the first `SEARCHED` sets
BATCHES = 100_000  # drawn from the sets
AT_LIMIT = 0.999  # of the longest step


def examined(run: Path) -> dict[str, Any]:
    """Measurements of the last weights of a run."""
    config = RunFolder(run).read_config()
    task = task_from_config(config)
    if not isinstance(task, MedianTask):
        raise ValueError(f"{run} is a run of {task.name}, expected one of {MedianTask.name}")
    network = load_weights(make_network(task), run, "last")
    x, median, _ = held_out_sets(SETS, task.set_size, torch.device("cpu"))
    with torch.no_grad():
        squares = (torch.cat([network(some) for some in x.split(AT_ONCE)]) - median).square()
    found = {
        "config": config,
        "versions": versions(),
        "hardware": hardware(torch.device("cpu")),
        "date": now(),
        "evaluation_sets": SETS,
        "mse": float(squares.mean()),
        "spikes": spikes(squares, task.batch_size),
    }
    if isinstance(network, MedianNetwork) and task.aggregation == "equilibrium":
        parts = [part[:SEARCHED].split(AT_ONCE) for part in (x, median)]
        longer = track(list(zip(*parts, strict=True)), f"{run.name}: the search")
        pieces = [searched(network, some, true) for some, true in longer]
        means = {name: torch.cat([one[name] for one in pieces], 1).mean(1) for name in pieces[0]}
        found["searched_sets"] = SEARCHED
        found["search"] = [
            {"steps": step, **{name: float(values[step]) for name, values in means.items()}}
            for step in range(STEPS + 1)
        ]
    return found


def spikes(squares: Tensor, batch_size: int) -> float:
    """The share of random batches that training would count as spikes."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(len(squares), (BATCHES, batch_size), generator=generator)
    return int(count_spikes(squares[drawn].mean(1))) / BATCHES


def searched(network: MedianNetwork, x: Tensor, median: Tensor) -> dict[str, Tensor]:
    """After each step of the search, `[STEPS + 1, B]`: the squared error, the largest component of
    the energy's gradient, the length of the step, and whether it is as long as the limit allows."""
    layer = network.aggregation
    assert isinstance(layer, EquilibriumAggregation)
    elements = network.embedding(x.unsqueeze(-1))
    trained, layer.num_steps = layer.num_steps, STEPS
    with torch.no_grad():
        path = layer.solve(elements, trajectory=True).trajectory
    layer.num_steps = trained
    assert path is not None
    lengths = torch.cat([torch.zeros_like(path[:1]), path.diff(dim=0)]).norm(dim=-1)
    limit = getattr(layer.solver, "max_step", None)
    at_limit = lengths >= AT_LIMIT * limit if limit else torch.zeros_like(lengths)
    with torch.no_grad():
        errors = network.head(path).squeeze(-1) - median
    return {
        "mse": errors.square(),
        "gradient": torch.stack([_slope(layer, elements, y) for y in path]),
        "length": lengths,
        "at_limit": at_limit.float(),
    }


def _slope(layer: EquilibriumAggregation, elements: Tensor, y: Tensor) -> Tensor:
    y = y.detach().requires_grad_()
    (slope,) = torch.autograd.grad(layer.energy(elements)(y).sum(), y)
    return slope.abs().amax(-1)


def main(runs: Sequence[str]) -> None:
    if not runs:
        sys.exit("expected directories of runs: python docs/figures/median_networks.py RUN...")
    RECORDS.mkdir(parents=True, exist_ok=True)
    for run in map(Path, runs):
        file = RECORDS / f"{run.name}.json"
        write_atomically(file, to_json(examined(run)))
        print(f"{run}: {file}")


if __name__ == "__main__":
    main(sys.argv[1:])
