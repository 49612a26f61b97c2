"""The command `equipool`. To add a command, write a typer application and add a line here."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from equipool.extras import advice

if TYPE_CHECKING:
    import typer

# Application and first line of the help of each command.
COMMANDS = {
    "train": ("equipool.cli.train:app", "Train a network."),
    "evaluate": ("equipool.cli.results:evaluate_app", "Evaluate a trained network."),
    "predict": ("equipool.cli.predict:app", "Predict bags or molecules with a trained model."),
    "fit": ("equipool.cli.fit:app", "Train a model on a table of bags."),
    "cv": ("equipool.cli.cv:app", "Compare methods by cross-validation on a table of bags."),
    "explain": (
        "equipool.cli.explain:app", "Measure the influence of each element on predictions."
    ),
    "explore": (
        "equipool.cli.explore:app", "Write a page that shows a bag and the model's prediction."
    ),
    "sweep": ("equipool.cli.sweep:app", "Train a network for each combination of settings."),
    "ablate": ("equipool.cli.sweep:ablate_app", "Repeat the paper's ablations."),
    "report": ("equipool.cli.results:report_app", "Write a page of tables and plots from runs."),
    "bench": ("equipool.bench.command:app", "Time the layer and its alternatives."),
}  # fmt: skip


def main() -> int:
    """Run the command; the exit status if it does not end the process itself."""
    missing = advice("The command equipool", {"cli": ("typer", "rich")})
    if missing is not None:
        print(missing, file=sys.stderr)
        return 1
    make_app()()
    return 0


def make_app() -> typer.Typer:
    """The command with all its subcommands. A subcommand is imported when it is called."""
    from functools import partial

    from equipool.cli.console import load_app, make_group

    about = "Equilibrium Aggregation for PyTorch."
    entries = {name: (line, partial(load_app, app)) for name, (app, line) in COMMANDS.items()}
    return make_group(about, entries, "command", name="equipool")
