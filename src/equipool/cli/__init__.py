"""The command `equipool`. To add a command, write a function and add a line here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from equipool.extras import advice

if TYPE_CHECKING:
    import typer

# The function of each command, and what it does.
COMMANDS = {
    "fit": ("equipool.cli.fit:fit", "Train a model on a table of bags."),
    "predict": ("equipool.cli.model:predict", "Predict bags or molecules with a trained model."),
    "compare": ("equipool.cli.compare:compare", "Compare methods by cross-validation."),
    "influence": ("equipool.cli.model:influence", "Measure the influence of each element."),
    "explore": ("equipool.cli.model:explore", "Write a page that shows a bag and its prediction."),
    "train": ("equipool.cli.train:train", "Train the network of an experiment."),
    "evaluate": ("equipool.cli.evaluate:evaluate", "Evaluate a trained network."),
    "sweep": ("equipool.cli.sweep:sweep", "Train a network for each combination of settings."),
    "report": ("equipool.cli.report:report", "Write a page of tables and plots from runs."),
}


def main() -> int:
    """Run the command; the exit status if it does not end the process itself."""
    missing = advice("The command equipool", {"cli": ("typer",)})
    if missing is not None:
        print(missing, file=sys.stderr)
        return 1
    make_app(sys.argv[1:])()
    return 0


def make_app(words: Sequence[str]) -> typer.Typer:
    """The command for a command line that begins with these words. What they do not call is not
    imported: the flags of an experiment are read from its classes, which import torch."""
    import typer

    from equipool.cli.console import command, top

    app = typer.Typer(
        name="equipool", no_args_is_help=True, rich_markup_mode=None, add_completion=False,
        pretty_exceptions_enable=False,
    )  # fmt: skip
    app.callback(invoke_without_command=True)(top)
    for name, (where, about) in COMMANDS.items():
        if [name] != list(words[:1]):
            app.command(name, help=about)(lambda: None)
        elif name in ("train", "sweep"):
            from equipool.cli.train import experiment_commands

            group = experiment_commands(resolve_name(where), words[1] if len(words) > 1 else None)
            app.add_typer(group, name=name)
        else:
            app.command(name)(command(resolve_name(where)))
    return app
