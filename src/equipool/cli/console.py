"""What all commands share: how flags are made from settings, errors, and what is printed."""

from __future__ import annotations

import inspect
import re
import shlex
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from equipool.settings import NOTHING, Setting, as_text, expected, settings_of

WRONG_USE = 2
STOPPED = 3  # stopped early; can be resumed

Table = Annotated[Path, typer.Argument(
    help="CSV, gzipped CSV or Parquet, with one row per element", exists=True, dir_okay=False,
    metavar="TABLE")]  # fmt: skip
Model = Annotated[Path, typer.Argument(
    help="file that equipool fit wrote", exists=True, dir_okay=False, metavar="MODEL")]  # fmt: skip


def command(function: Callable[..., None], more: Sequence[Parameter] = ()) -> Callable[..., None]:
    """The function as typer reads it: its parameter `options`, a dataclass of settings, becomes a
    flag for each field, and its `**texts` become the parameters in `more`. Expected errors end the
    command with a message, and warnings are printed as lines."""
    parameters = dict(inspect.signature(function, eval_str=True).parameters)
    kind = parameters.pop("options").annotation
    parameters.pop("texts", None)
    settings = settings_of(kind)

    def call(**values: Any) -> None:
        texts = {name: values.pop(name) for name in settings}
        with plain_errors(WRONG_USE):
            given = {k: settings[k].read(text) for k, text in texts.items() if text is not None}
            options = kind(**given)
        with plain_errors(), warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = lambda message, *where: note(f"Warning: {message}")
            function(**values, options=options)

    flags = [flag_of(one, one.default) for one in settings.values()]
    call.__doc__ = function.__doc__
    call.__signature__ = inspect.Signature([  # type: ignore[attr-defined]
        one.replace(kind=Parameter.KEYWORD_ONLY) for one in (*parameters.values(), *more, *flags)
    ])  # fmt: skip
    return call


def flag_of(setting: Setting, default: Any) -> Parameter:
    """The parameter, as typer reads it, that takes a setting as text."""
    about = re.sub(r"\$[^$]*\$,? ?", "", setting.about).replace("`", "").rstrip(".")
    about = re.sub(r"\bNone\b", NOTHING, about)
    _, one_of, names = expected(setting.hint).partition("one of ")
    if names:
        about += f"; {one_of}{names}"
    if default not in (None, (), MISSING):
        about += f"  [default: {as_text(default)}]"
    option = typer.Option(setting.flag, help=about, metavar=setting.metavar)
    return Parameter(
        setting.name, Parameter.KEYWORD_ONLY, annotation=Annotated[str | None, option],
        default=Parameter.empty if default is MISSING else None,
    )  # fmt: skip


def top(
    version: Annotated[bool, typer.Option("--version", help="print the version and exit")] = False,
) -> None:
    """Equilibrium Aggregation for PyTorch."""
    import equipool

    if version:
        typer.echo(f"equipool {equipool.__version__}")


def fail(message: str, status: int = 1) -> NoReturn:
    """End the command with a message."""
    typer.echo(f"Error: {message}", err=True)
    raise typer.Exit(status)


@contextmanager
def plain_errors(status: int = 1) -> Iterator[None]:
    """End the command with a one-line message, not a traceback, on errors from outside the program:
    wrong values, files that are missing or cannot be written, missing packages, too little memory,
    a loss that is not finite.
    If the output pipe is closed, as by `| head`, typer ends the command silently."""
    try:
        yield
    except BrokenPipeError:
        raise
    except (ValueError, OSError, ImportError, MemoryError, FloatingPointError) as error:
        fail(str(error) or type(error).__name__, status)


def choose_device(name: str, threads: int = 1) -> str | None:
    """The engine's name of a device; refuses one that does not exist. Sets torch's threads."""
    import torch

    from equipool.environment import resolve_device

    torch.set_num_threads(threads)
    return None if name == "auto" else str(resolve_device(name))


def report_line(text: str) -> None:
    """Print a line, once."""
    from equipool.environment import leads

    if leads():
        typer.echo(text)


def note(text: str) -> None:
    """Print a line on stderr, beside a table on stdout."""
    typer.echo(text, err=True)


def number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.6g}"


def command_line(*words: object) -> str:
    """A command that can be copied into a shell.

    Example:
        >>> command_line("train", "median", "--out", Path("my runs"), "--resume")
        "equipool train median --out 'my runs' --resume"
    """
    return shlex.join(["equipool", *map(str, words)])


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table. No cell is cut: a terminal wraps lines that are too long.

    Example:
        >>> print_table(["method", "mse"], [["sum", "0.1"], ["attention", "0.25"]])
        method     mse
        sum        0.1
        attention  0.25
    """
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    for row in (headings, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        report_line("  ".join(cells).rstrip())
