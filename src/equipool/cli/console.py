"""What all commands share: their options, their errors and what they print."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer

WRONG_USE = 2
STOPPED = 3  # stopped early; can be resumed
RUN = "Run"  # heading of the options that no task has


def option(about: str, metavar: str | None = None, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=about, metavar=metavar, **more)


RunFolder = Annotated[Path, typer.Argument(help="directory of the run", metavar="RUN")]
Device = Annotated[str, option("cpu, cuda, cuda:1, ... or auto", "NAME")]
Threads = Annotated[int, option("CPU threads", "INT", min=1)]
DataDir = Annotated[
    Path | None,
    option("data directory (default: $EQUIPOOL_DATA, then the cache directory)", "PATH"),
]
Which = Annotated[Literal["best", "last"], option("best or last checkpoint", "best|last")]


def print_version(
    version: Annotated[bool, option("print the version and exit", None, "--version")] = False,
) -> None:
    if version:
        import equipool

        typer.echo(f"equipool {equipool.__version__}")
        raise typer.Exit


def fail(message: str, status: int = 1) -> NoReturn:
    """End the command with a message."""
    typer.echo(f"Error: {message}", err=True)
    raise typer.Exit(status)


@contextmanager
def plain_errors(status: int = 1) -> Iterator[None]:
    """End the command with a one-line message, not a traceback, on errors from outside the program:
    wrong values, files that are missing or cannot be written, missing packages, too little memory.
    If the output pipe is closed, as by `| head`, typer ends the command silently."""
    try:
        yield
    except BrokenPipeError:
        raise
    except (ValueError, OSError, ImportError, MemoryError) as error:
        fail(str(error) or type(error).__name__, status)


def choose_device(name: str, threads: int = 1) -> str | None:
    """The engine's name of a device; refuses one that does not exist. Sets torch's threads."""
    import torch

    from equipool.training.devices import resolve_device

    torch.set_num_threads(threads)
    if name == "auto":
        return None
    try:
        return str(resolve_device(name))
    except ValueError as error:
        raise ValueError(f"--{error}, or auto") from None


def report_line(text: str) -> None:
    """Print a line, once."""
    from equipool.environment import leads

    if leads():
        typer.echo(text)


def note(text: str) -> None:
    """Print a line on stderr, beside a table on stdout."""
    typer.echo(text, err=True)


def command_line(words: Sequence[str], options: Mapping[str, object]) -> str:
    """A command that can be copied into a shell; options that are None or False are left out.

    Example:
        >>> command_line(["train", "median"], {"--out": "my runs", "--resume": True})
        "equipool train median --out 'my runs' --resume"
    """
    parts = ["equipool", *words]
    for name, value in options.items():
        if value is not None and value is not False:
            parts += [name] if value is True else [name, str(value)]
    return shlex.join(parts)


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None
) -> None:
    """Print a table. No cell is cut: a terminal wraps lines that are too long.

    Example:
        >>> print_table(["method", "mse"], [["sum", "0.1"], ["attention", "0.25"]])
        method     mse
        sum        0.1
        attention  0.25
    """
    if title is not None:
        report_line(f"\n{title}")
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    for row in (headings, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        report_line("  ".join(cells).rstrip())
