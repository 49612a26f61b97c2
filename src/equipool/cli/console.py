"""What all commands share: how flags are made from settings, errors, and what is printed."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, is_dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar, get_type_hints

import typer

from equipool.settings import NOTHING, Count, Setting, as_text, expected, from_text, settings_of

T = TypeVar("T")

WRONG_USE = 2
STOPPED = 3  # stopped early; can be resumed

Table = Annotated[Path, typer.Argument(
    help="CSV, gzipped CSV or Parquet, with one row per element", exists=True, dir_okay=False,
    metavar="TABLE")]  # fmt: skip
Model = Annotated[Path, typer.Argument(
    help="file that equipool fit wrote", exists=True, dir_okay=False, metavar="MODEL")]  # fmt: skip
Threads = Count


def command(function: Callable[..., None]) -> Callable[..., None]:
    """The function as typer reads it: a parameter that is a dataclass of settings becomes a flag
    for each field."""
    hints = get_type_hints(function, include_extras=True)
    given = inspect.signature(function).parameters
    groups = {name: settings_of(hints[name]) for name in given if is_dataclass(hints[name])}
    flags = {name: option_of(one) for group in groups.values() for name, one in group.items()}

    def call(**values: Any) -> None:
        with plain_errors(WRONG_USE):
            made = {name: options_from(hints[name], values) for name in groups}
        function(**made, **{name: values[name] for name in own})

    own = {name: (hints[name], given[name].default) for name in given if name not in groups}
    return with_signature(call, own | flags, function.__doc__)


def with_signature(
    function: Callable[..., None], parameters: Mapping[str, tuple[Any, Any]], about: str | None
) -> Callable[..., None]:
    """Let typer see these parameters, each with its annotation and default."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    function.__doc__ = about
    function.__signature__ = inspect.Signature([  # type: ignore[attr-defined]
        inspect.Parameter(name, keyword, default=default, annotation=hint)
        for name, (hint, default) in parameters.items()
    ])  # fmt: skip
    return function


def option_of(setting: Setting) -> tuple[Any, Any]:
    """As `flag_of`; a setting that is false by default is a flag without a value."""
    if setting.default is False:
        return Annotated[bool, typer.Option(setting.flag, help=setting.about.rstrip("."))], False
    return flag_of(setting, setting.default)


def flag_of(setting: Setting, default: Any) -> tuple[Any, Any]:
    """The annotation and the default of a parameter that takes a setting as text."""
    about = re.sub(r"\$[^$]*\$,? ?", "", setting.about).replace("`", "").rstrip(".")
    about = re.sub(r"\bNone\b", NOTHING, about)
    _, one_of, names = expected(setting.hint).partition("one of ")
    if names and names != setting.metavar.replace("|", ", "):
        about += f"; {one_of}{names}"
    if default is MISSING:
        about += "  [required]"
    elif default not in (None, ()):
        about += f"  [default: {as_text(default)}]"
    option = typer.Option(setting.flag, help=about, metavar=setting.metavar)
    return Annotated[str | None, option], None


def options_from(kind: type[T], values: Mapping[str, Any]) -> T:
    """The dataclass of the values that typer read for its flags."""
    given = {name: values[name] for name in settings_of(kind)}
    texts = {name: as_text(v) if isinstance(v, bool) else v for name, v in given.items()}
    return from_text(kind, texts)


def _print_version(asked: bool) -> None:
    if asked:
        import equipool

        typer.echo(f"equipool {equipool.__version__}")
        raise typer.Exit


def top(
    version: Annotated[bool, typer.Option(
        "--version", callback=_print_version, is_eager=True, help="print the version and exit",
    )] = False,
) -> None:  # fmt: skip
    """Equilibrium Aggregation for PyTorch."""


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
