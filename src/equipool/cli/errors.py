"""Errors as whoever types a command wants them: one message, no traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

WRONG_USE = 2
STOPPED = 3  # before the end, and can be gone on with


def fail(message: str, status: int = 1) -> NoReturn:
    """End the command with a message."""
    typer.echo(f"Error: {message}", err=True)
    raise typer.Exit(status)


@contextmanager
def plain_errors(status: int = 1) -> Iterator[None]:
    """What goes wrong inside for a reason outside the program ends the command with its message:
    values that cannot be, files that are not there or cannot be written, missing packages. Where
    nobody reads on, as behind `| head`, typer ends the command without a word."""
    try:
        yield
    except BrokenPipeError:
        raise
    except (ValueError, OSError, ImportError) as error:
        fail(str(error), status)
