"""Implicit gradients of trained networks: share of sets without fallback, error, time and memory.

    python benchmarks/implicit.py runs/jets runs/median --out benchmarks/records/cpu-implicit.json

Takes runs of `equipool train median`, `bags` or `molecules`. Each method gets the gradient of the
network's output by the layer's parameters after as many inner steps, and is compared with that
through all of them in float64. Takes a minute per run on one core.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from influence_subjects import subject_of_run

import equipool
from equipool import Fixed, Implicit, Truncated, Unrolled
from equipool.bench.command import Out, check_out
from equipool.bench.record import git_commit
from equipool.environment import hardware, now, versions

METHODS = {"Unrolled()": Unrolled(), "Truncated(5)": Truncated(5), "Implicit()": Implicit()}

app = typer.Typer(add_completion=False)


def measure(run: Path, num_sets: int, steps: tuple[int, ...], repeats: int) -> dict[str, Any]:
    """The comparison on test sets of a run, for each number of inner steps."""
    subject, about = subject_of_run(run, num_sets)
    comparisons = {}
    for subject.layer.steps in map(Fixed, steps):
        found = equipool.compare_gradients(
            subject.layer, subject.x, mask=subject.mask, methods=METHODS,
            loss=lambda y: subject.output(y).sum(), repeats=repeats,
        )  # fmt: skip
        typer.echo(f"{run.name}, {found}\n")
        comparisons[str(subject.layer.num_steps)] = found.as_dict()
    return about | {"sets": len(subject.x), "steps": comparisons}


@app.command()
def main(
    runs: Annotated[list[Path], typer.Argument(exists=True, help="directories of runs")],
    out: Out = None,
    sets: Annotated[int, typer.Option(min=1, help="sets per run", metavar="INT")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="timed repeats", metavar="INT")] = 5,
) -> None:
    """Compare implicit gradients of trained networks with those through the search."""
    check_out(out)
    torch.set_num_threads(1)
    found = [measure(run, sets, (20, 50, 100), repeats) for run in runs]
    record = {
        "command": "python benchmarks/implicit.py", "date": now(), "commit": git_commit(),
        "versions": versions(), "hardware": hardware(torch.device("cpu")), "runs": found,
    }  # fmt: skip
    if out is not None:
        out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    app()
