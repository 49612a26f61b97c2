"""The command `equipool`. Each command is a file with a typer application `app`; to add one, add
its file and its line here."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from equipool.extras import advice

if TYPE_CHECKING:
    import typer

NEEDED = {"cli": ("typer", "rich")}

# Module and first line of the help of each command.
COMMANDS = {
    "train": ("equipool.cli.train", "Train a network."),
    "evaluate": ("equipool.cli.evaluate", "Evaluate a trained network."),
    "predict": ("equipool.cli.predict", "Predict properties of molecules with a trained network."),
    "sweep": ("equipool.cli.sweep", "Train a network for each combination of settings."),
    "ablate": ("equipool.cli.ablate", "Repeat the paper's ablations."),
    "report": ("equipool.cli.report", "Write a page of tables and plots from runs."),
    "bench": ("equipool.bench.command", "Time the layer and its alternatives."),
}


def main() -> int:
    """Run the command; the exit status if it does not end the process itself."""
    missing = advice("The command equipool", NEEDED)
    if missing is not None:
        print(missing, file=sys.stderr)
        return 1
    make_app()()
    return 0


def make_app() -> typer.Typer:
    """The command with all its subcommands. A subcommand is imported when it is called."""
    from equipool.cli.groups import Entry, load_app, make_group

    entries = {
        name: Entry(about, lambda module=module: load_app(module))  # type: ignore[misc]
        for name, (module, about) in COMMANDS.items()
    }
    return make_group("Equilibrium Aggregation for PyTorch.", entries, "command", name="equipool")


if __name__ == "__main__":
    sys.exit(main())
