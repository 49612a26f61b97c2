"""What each part of `equipool.converging` does: jets, with one setting changed at a time.

    python benchmarks/recipe_choices.py --out benchmarks/records/cpu-recipe-choices.json

Trains a network for each variant on three quarters of the training jets of the first fold, in two
minutes on one core, and evaluates it on the others with several numbers of inner steps. Variants
that the record has are skipped, so an interrupted run resumes. Needs the table of jets (--data-dir,
or the environment variable EQUIPOOL_DATA).
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from equipool.bench.record import git_commit
from equipool.cli.train import base_values
from equipool.environment import hardware, now, versions
from equipool.recipes import AUX_WEIGHT
from equipool.training import TrainingConfig, evaluate_over_steps, train
from equipool.training.config import task_from_config

STEPS = (5, 10, 20, 100, 300)
RECIPE, PLAIN = "converging", "plain"
# Fields of the task, and training settings, that differ from the recipe. `plain` is the preset
# without the recipe.
VARIANTS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    RECIPE: {},
    'scaling="log"': {"scaling": "log"},
    "regulariser from 0.1": {"regularizer_weight": 0.1},
    "no auxiliary loss": {"aux_weight": 0.0},
    "always 10 steps": {"inner_steps.least": 10, "inner_steps.most": 10},
    "5, 10 or 20 steps": {"inner_steps.most": 20},
    "auxiliary weight falling to 1e-5": {"aux_weight": 1e-5, "aux_initial": AUX_WEIGHT},
    "step size and momentum fixed": {"solver.learnable": False},
    "random starts": {"start": "normal"},
}

app = typer.Typer(add_completion=False)


def settings(variant: str) -> dict[str, Any]:
    """The fields of the task and the training settings of a variant."""
    values = base_values("bags", "quick", None if variant == PLAIN else RECIPE)
    steps = values["training"]["steps"]
    training: dict[str, Any] = {
        "evaluate_every": steps,
        "checkpoint_every": steps,
        "log_every": steps,
    }
    fields: dict[str, Any] = {"valid_share": 0.25}
    of_training = {field.name for field in dataclasses.fields(TrainingConfig)}
    for name, value in VARIANTS[variant].items():
        (training if name in of_training else fields)[name] = value
    return {"fields": values["fields"] | fields, "training": values["training"] | training}


def measure(fields: dict[str, Any], training: dict[str, Any]) -> dict[str, Any]:
    """Train a network and evaluate it over the number of steps."""
    task = task_from_config({"task": "bags", "fields": fields})
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        trained = train(task, TrainingConfig(**training), run, device="cpu", progress=False)
        if not trained.complete:  # interrupted: nothing to record
            raise typer.Exit(1)
        rows = evaluate_over_steps(run, STEPS, "last", device="cpu")
    return {
        "valid_auc": {str(row.num_steps): row.metrics["valid_auc"] for row in rows},
        "residual": rows[-1].residual,
        "residual_99": rows[-1].residual_99,
        "converged": rows[-1].converged,
        "training_seconds": trained.training_seconds,
    }


@app.command()
def main(
    out: Annotated[Path, typer.Option(help="JSON file to write or complete", metavar="PATH")],
    data_dir: Annotated[str | None, typer.Option(help="data directory", metavar="PATH")] = None,
) -> None:
    """Train the variants that the record lacks."""
    torch.set_num_threads(1)
    if data_dir is not None:
        os.environ["EQUIPOOL_DATA"] = data_dir
    record = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"variants": {}}
    for variant in VARIANTS:
        if variant in record["variants"]:
            continue
        chosen = settings(variant)
        record["variants"][variant] = chosen | measure(**chosen)
        record |= {
            "command": "python benchmarks/recipe_choices.py", "date": now(),
            "commit": git_commit(), "versions": versions(),
            "hardware": hardware(torch.device("cpu")),
        }  # fmt: skip
        out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        areas = record["variants"][variant]["valid_auc"]
        typer.echo(f"{variant:32} " + "  ".join(f"{n}: {area:.4f}" for n, area in areas.items()))


if __name__ == "__main__":
    app()
