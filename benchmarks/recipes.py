"""What a training step costs with a fixed number of inner steps and with `equipool.converging`.

    python benchmarks/recipes.py --out benchmarks/records/cpu-recipes.json

Counts seconds of the processor, so other processes on the machine disturb little. Takes a minute on
one core. Each number of steps that `RandomSteps` draws is timed by itself; they are drawn equally
often, so their mean is the cost of the recipe.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import equipool
from equipool.bench.record import git_commit
from equipool.environment import hardware, now, versions
from equipool.experiments.median import MedianTask
from equipool.recipes import AUX_WEIGHT
from equipool.training import Shard

TASK = MedianTask(
    embedding=16, batch_size=32, width=64, potential_output=8,
    solver="nesterov:momentum=0.5,max_step=0.5,curvature_safe=true",
)  # fmt: skip
LAST_FIVE = "truncated:num_steps=5"
NUMBERS = (5, 10, 20, 40)

app = typer.Typer(add_completion=False)


def seconds_per_step(task: MedianTask, repeats: int) -> float:
    """Median processor seconds of loss and gradients of a training step."""
    torch.manual_seed(0)
    network = task.network()
    batches = task.batches(0, repeats + 1, torch.device("cpu"), Shard())
    times = []
    for step in range(repeats + 1):
        begin = time.process_time()
        with equipool.record(diagnostics=False) as solutions:
            loss = task.loss(network, {name: values[step] for name, values in batches.items()})
        (loss.value + AUX_WEIGHT * solutions.aux_loss).backward()
        times.append(time.process_time() - begin)
    return statistics.median(times[1:])  # the first one warms up


def measure(task: MedianTask, repeats: int) -> dict[str, dict[str, float]]:
    """Seconds per step, unrolled and through the last five steps, by number of steps."""
    found: dict[str, dict[str, float]] = {"unrolled": {}, "last five": {}}
    for number in NUMBERS:
        deep = replace(task, inner_steps=number)
        found["unrolled"][str(number)] = seconds_per_step(deep, repeats)
        last = replace(deep, differentiation=LAST_FIVE)
        found["last five"][str(number)] = seconds_per_step(last, repeats)
    return found


def recipe_cost(seconds: Mapping[str, float]) -> float:
    """The mean over the numbers of steps that `converging` draws."""
    steps: Any = equipool.converging()["steps"]
    return statistics.fmean(seconds[str(number)] for number in steps.choices)


@app.command()
def main(
    out: Annotated[Path | None, typer.Option(help="JSON file to write", metavar="PATH")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="timed steps", metavar="INT")] = 15,
) -> None:
    """Time training steps of both recipes."""
    torch.set_num_threads(1)
    seconds = measure(TASK, repeats)
    record = {
        "command": f"python benchmarks/recipes.py --repeats {repeats}", "date": now(),
        "commit": git_commit(), "versions": versions(),
        "hardware": hardware(torch.device("cpu")), "seconds": seconds,
    }  # fmt: skip
    if out is not None:
        out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for name, values in seconds.items():
        row = "  ".join(f"{number}: {1000 * value:.1f} ms" for number, value in values.items())
        typer.echo(f"{name:10} {row}")
    typer.echo(f"converging {1000 * recipe_cost(seconds['last five']):.1f} ms")


if __name__ == "__main__":
    app()
