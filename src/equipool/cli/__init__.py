"""The command `equipool`. To add a command, write a function and add a line here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from equipool.extras import advice

if TYPE_CHECKING:
    import typer

# The function of each command.
COMMANDS = {
    "fit": "equipool.cli.fit:fit",
    "predict": "equipool.cli.predict:predict",
    "compare": "equipool.cli.compare:compare",
    "influence": "equipool.cli.influence:influence",
    "explore": "equipool.cli.explore:explore",
    "train": "equipool.cli.train:commands",
    "evaluate": "equipool.cli.evaluate:evaluate",
    "sweep": "equipool.cli.sweep:commands",
    "report": "equipool.cli.report:report",
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
    app.callback()(top)
    called = words[0] if words else None
    for name in (called,) if called in COMMANDS else COMMANDS:
        found = resolve_name(COMMANDS[name])
        if name in ("train", "sweep"):
            task = words[1] if name == called and len(words) > 1 else None
            app.add_typer(found(task), name=name)
        else:
            app.command(name)(command(found))
    return app
