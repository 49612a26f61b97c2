"""Train the explorer's networks; writes explorer/networks.json in about a quarter of an hour.

python explorer/train_networks.py
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from set_tasks import TARGETS, SetNetwork, SetTask
from torch import nn

from equipool.environment import hardware, now, versions
from equipool.explore.describe import describe_network
from equipool.recipes import AUX_WEIGHT
from equipool.training import TrainingConfig, load_network, train

NETWORKS = Path(__file__).parent / "networks.json"
METHODS = ("equilibrium", "sum", "attention")
DIGITS = 4  # of a weight in the page
TESTED_STEPS = (5, 10, 20, 40, 80, 300)  # inner steps at which the equilibrium is tested


def training(steps: int) -> TrainingConfig:
    """The same for all networks."""
    return TrainingConfig(
        steps, learning_rate=3e-3, schedule="cosine", warmup_steps=steps // 20,
        aux_weight=AUX_WEIGHT, chunk=50,
    )  # fmt: skip


def round_weights(network: nn.Module) -> None:
    """Round every weight to the digits that the page has, so that both compute the same."""
    with torch.no_grad():
        for parameter in network.parameters():
            values = [float(f"{value:.{DIGITS}g}") for value in parameter.flatten().tolist()]
            parameter.copy_(torch.tensor(values).view_as(parameter))


def train_one(task: SetTask, steps: int) -> dict[str, Any]:
    """Train and test one network; its description, errors and size."""
    with TemporaryDirectory() as run:
        record = train(task, training(steps), run, device="cpu", progress=False)
        network = load_network(run, "last")
    assert isinstance(network, SetNetwork)
    round_weights(network)
    found: dict[str, Any] = {
        "rmse": error(task, network),
        "parameters": record.num_parameters,
        "training_seconds": round(record.training_seconds, 1),
        "network": describe_network(network.encoder, network.aggregation, network.head),
    }
    if task.method == "equilibrium":
        found["rmse_by_steps"] = error_by_steps(task, network)
    return found


@torch.no_grad()
def error(task: SetTask, network: nn.Module) -> float:
    return round(task.evaluate(network.eval(), torch.device("cpu"))["rmse"], 5)


def error_by_steps(task: SetTask, network: SetNetwork) -> dict[int, float]:
    """The error after more and fewer inner steps."""
    layer: Any = network.aggregation
    steps, found = layer.steps, {}
    for number in TESTED_STEPS:
        layer.steps = number
        found[number] = error(task, network)
    layer.steps = steps
    return found


def train_all(answers: list[str], steps: int, seed: int) -> dict[str, Any]:
    """The record: how the networks were trained, their errors and weights."""
    tasks = []
    for answer in answers:
        networks = {}
        for method in METHODS:
            networks[method] = train_one(SetTask(answer, method, seed=seed), steps)
            print(f"{answer:18} {method:12} error {networks[method]['rmse']:.4f}", flush=True)
        tasks.append({"answer": answer, "channels": TARGETS[answer][0], "networks": networks})
    return {
        "format": 1,
        "date": now(),
        "versions": versions(),
        "hardware": hardware(torch.device("cpu")),
        "task": asdict(SetTask(seed=seed)),
        "training": asdict(training(steps)),
        "tasks": tasks,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4000, help="training steps of each network")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--answer", action="append", choices=list(TARGETS), help="default: all")
    parser.add_argument("--out", type=Path, default=NETWORKS)
    options = parser.parse_args()
    record = train_all(options.answer or list(TARGETS), options.steps, options.seed)
    options.out.write_text(json.dumps(record, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
