"""The command `equipool`. Each group of commands is a file of its own, named here."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from equipool.extras import advice

if TYPE_CHECKING:
    import typer

NEEDED = {"cli": ("typer", "rich")}


def main() -> int:
    """Run the command; the exit status where it does not end the process itself."""
    missing = advice("The command equipool", NEEDED)
    if missing is not None:
        print(missing, file=sys.stderr)
        return 1
    make_app()()
    return 0


def make_app() -> typer.Typer:
    """The command with all its groups."""
    # these need the extra
    import typer

    from equipool.bench import command as bench
    from equipool.cli import ablate, evaluate, predict, report, sweep, train

    app = typer.Typer(
        name="equipool", help="Equilibrium Aggregation for PyTorch.", no_args_is_help=True
    )
    app.add_typer(train.app, name="train")
    app.command("evaluate")(evaluate.evaluate)
    app.command("predict")(predict.predict)
    app.add_typer(sweep.app, name="sweep")
    app.add_typer(ablate.app, name="ablate")
    app.command("report")(report.report)
    app.add_typer(bench.app, name="bench")
    return app


if __name__ == "__main__":
    sys.exit(main())
