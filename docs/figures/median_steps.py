"""Trained networks of the median with other numbers of inner steps than they were trained with.

    python docs/figures/median_steps.py runs/median/equilibrium-embedding-16-seed-*

writes records/median-inner-steps, a file for each run, from which median.py makes a table. It
takes about four minutes a run on two cores.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from equipool.environment import hardware, versions
from equipool.tasks import MedianTask
from equipool.training.config import task_from_config
from equipool.training.files import to_json, write_atomically
from equipool.training.folder import RunFolder
from equipool.training.loading import load_weights
from equipool.training.step import make_network

RECORDS = Path(__file__).parents[2] / "records" / "median-inner-steps"

STEPS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 20)
SETS = 10_000


def evaluated(run: Path, steps: Sequence[int], sets: int) -> dict[str, Any]:
    """What the last weights of a run give with each of these numbers of inner steps."""
    config = RunFolder(run).read_config()
    task = task_from_config(config)
    if not isinstance(task, MedianTask) or task.aggregation != "equilibrium":
        raise ValueError(f"{run} is a run of {task}, expected equilibrium aggregation's median")
    device = torch.device("cpu")
    entries = []
    for number in track(steps, f"{run.name}: inner steps"):
        changed = replace(task, inner_steps=number, evaluation_sets=sets)
        network = load_weights(make_network(changed), run, "last")
        entries.append({"inner_steps": number, "metrics": changed.evaluate(network, device)})
    return {
        "config": config,
        "versions": versions(),
        "hardware": hardware(device),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "evaluation_sets": sets,
        "entries": entries,
    }


def main(runs: Sequence[str]) -> None:
    if not runs:
        sys.exit("expected directories of runs: python docs/figures/median_steps.py RUN...")
    RECORDS.mkdir(parents=True, exist_ok=True)
    for run in map(Path, runs):
        found = to_json(evaluated(run, STEPS, SETS))
        write_atomically(RECORDS / f"{run.name}.json", found)


if __name__ == "__main__":
    main(sys.argv[1:])
