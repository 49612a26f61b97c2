"""The command `equipool`. Each group of commands is a file of its own, named here."""

from __future__ import annotations

import sys
from importlib.util import find_spec

NEEDED = ("typer", "rich")


def main() -> int:
    """Run the command; the exit status where it does not end the process itself."""
    missing = [module for module in NEEDED if find_spec(module) is None]
    if missing:
        print(
            f'The command equipool needs {" and ".join(missing)}. Run: pip install "equipool[cli]"',
            file=sys.stderr,
        )
        return 1
    # this needs the extra
    import typer

    from equipool.bench import command as bench

    app = typer.Typer(
        name="equipool", help="Equilibrium Aggregation for PyTorch.", no_args_is_help=True
    )
    app.add_typer(bench.app, name="bench")
    app()
    return 0


if __name__ == "__main__":
    sys.exit(main())
