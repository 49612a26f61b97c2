"""The page that shows the demonstration's results: one file, pictures included."""

from __future__ import annotations

import base64
import os
import platform
from dataclasses import asdict, astuple
from pathlib import Path

import jinja2
import torch

import equipool
from equipool.demo.results import HEADINGS, table
from equipool.demo.study import Plan, Study
from equipool.demo.words import about_curves, about_energy, about_landscape

TEMPLATE = Path(__file__).with_name("page.html.j2")


def write_page(study: Study, plan: Plan, pictures: dict[str, Path], file: Path) -> None:
    """Write the page.

    Args:
        pictures: the files of the pictures `curves`, `energy` and `landscape`.
    """
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    html = template.render(
        headings=astuple(HEADINGS),
        rows=[astuple(row) for row in table(study.results)],
        plan=plan,
        study=study,
        about_curves=about_curves(study.results),
        about_energy=about_energy(study.paths, study.error_by_step),
        about_landscape=about_landscape(study.landscape),
        images={name: _embedded(picture) for name, picture in pictures.items()},
        settings=settings(study, plan),
    )
    file.write_text(html, encoding="utf-8")


def settings(study: Study, plan: Plan) -> dict[str, str]:
    """Everything that went into the run, for the foot of the page."""
    solver = study.layer.solver
    budget = (
        f"{plan.steps:,} steps each" if plan.steps is not None else f"{plan.seconds:g} seconds each"
    )
    learned = ", ".join(f"{name} {value:.3f}" for name, value in _learned(study).items())
    return {
        "seed": str(plan.seed),
        "budget": budget,
        "test sets": f"{plan.num_test_sets:,}",
        "sizes": _listed(asdict(plan.sizes)),
        "training": "Adam, " + _listed(asdict(plan.recipe)),
        "inner solver": f"{type(solver).__name__}; learned: {learned}",
        "versions": f"equipool {equipool.__version__}, torch {torch.__version__}, "
        f"Python {platform.python_version()}",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, "
        f"{torch.get_num_threads()} threads",
    }


def _learned(study: Study) -> dict[str, float]:
    """The learned numbers of the layer."""
    layer = study.layer
    parts = {
        "step size": getattr(layer.solver, "learning_rate", None),
        "momentum": getattr(layer.solver, "momentum", None),
        "weight of the regulariser": getattr(layer.regularizer, "weight", None),
    }
    return {name: value.item() for name, value in parts.items() if value is not None}


def _listed(values: dict[str, object]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())


def _embedded(picture: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode("ascii")
