"""What all commands share: their options, their help, their errors and what they print."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

if TYPE_CHECKING:
    from rich.console import Console

    from equipool.training import Record

WRONG_USE = 2
STOPPED = 3  # stopped early; can be resumed
RUN = "Run"  # heading of the options that no task has
HYPHEN, SPACE = "\u2011", "\u00a0"  # that no line is broken at
UsageError: Any = typer.BadParameter.__base__  # typer has no public name for it


def option(about: str, metavar: str, *names: str) -> Any:
    return typer.Option(*names, help=about, metavar=metavar, rich_help_panel=RUN)


RunFolder = Annotated[Path, typer.Argument(help="directory of the run", metavar="RUN")]
Device = Annotated[str, option("cpu, cuda, cuda:1, ... or auto", "NAME")]
Threads = Annotated[
    str, option("CPU threads; auto times one and all of them and uses the faster", "auto|INT")
]
DataDir = Annotated[
    Path | None,
    option("data directory (default: $EQUIPOOL_DATA, then the cache directory)", "PATH"),
]
Which = Annotated[
    Literal["best", "last"], typer.Option(help="best or last checkpoint", metavar="best|last")
]


@dataclass(frozen=True)
class RunOptions:
    """Options of commands that train; no task has them."""

    out: Annotated[
        Path | None, option("directory of the run or runs (default: runs/TASK)", "PATH")
    ] = None
    preset: Annotated[
        str | None, option("start from these settings; other flags override them", "NAME")
    ] = None
    recipe: Annotated[
        str | None,
        option("settings of the equilibrium layers; converging trains towards the minimum", "NAME"),
    ] = None
    device: Device = "auto"
    threads: Threads = "auto"
    max_seconds: Annotated[
        float | None, option("save and stop after this many seconds", "FLOAT")
    ] = None
    data_dir: DataDir = None

    def check(self) -> None:
        """Refuse a time limit that is not positive."""
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise ValueError(f"--max-seconds is {self.max_seconds:g}, expected more than 0")

    def words(self, *left_out: str) -> dict[str, object]:
        """The options that differ from their defaults, as they are typed."""
        return {
            f"--{field.name.replace('_', '-')}": getattr(self, field.name)
            for field in fields(self)
            if field.name not in left_out and getattr(self, field.name) != field.default
        }


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


def device_from_name(name: str) -> str | None:
    """The engine's name of a device; refuses one that does not exist."""
    from equipool.training.devices import resolve_device

    if name == "auto":
        return None
    try:
        return str(resolve_device(name))
    except ValueError as error:
        raise ValueError(f"--{error}, or auto") from None


def default_folder(task: str, options: RunOptions) -> Path:
    """Where runs go without `--out`."""
    return Path("runs") / "-".join(filter(None, (task, options.preset, options.recipe)))


def make_console() -> Console:
    """Wide enough for the tables when the width is unknown."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=120)


def report_line(text: str) -> None:
    """Print a line, once."""
    from equipool.environment import leads

    if leads():
        typer.echo(text)


def command_line(words: Sequence[str], options: Mapping[str, object]) -> str:
    """A command that can be copied into a shell; options that are None or False are left out.

    Example:
        >>> command_line(["train", "median"], {"--out": "my runs", "--resume": True})
        "equipool train median --out 'my runs' --resume"
    """
    parts = ["equipool", *words]
    for option, value in options.items():
        if value is True:
            parts.append(option)
        elif value is not None and value is not False:
            parts += [option, str(value)]
    return shlex.join(parts)


def print_record(record: Record) -> None:
    """The metrics of a run: of its last evaluation and of the best."""
    best = record.best or {"metrics": {}}
    at_best = f"best, step {best['step']:,}" if record.best else "best"
    headings = ("metric", f"last, step {record.steps:,}", at_best)
    found = ((name, value, best["metrics"].get(name)) for name, value in record.metrics.items())
    rows = ((name, _number(last), _number(best)) for name, last, best in found)
    print_table(headings, list(rows))
    report_line(
        f"{record.training_seconds:,.1f} s of training, {record.seconds:,.1f} s in total; "
        f"{record.num_parameters:,} parameters; {record.skipped} skipped steps, "
        f"{record.spikes} spikes"
    )


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None
) -> None:
    """Print a table, as several tables if the terminal is narrow."""
    from rich.table import Table

    from equipool.environment import leads

    if not leads():
        return
    console = make_console()
    widths: list[int] = []
    for heading, *cells in zip(headings, *rows, strict=True):
        # no word is broken, and no cell except in the first column
        pieces = cells if widths else " ".join(cells).split()
        widths.append(max(map(len, (*heading.split(), *pieces))))
    for number, fitting in enumerate(_fitting(widths, console.width)):
        shown = Table(title=None if number else title)
        for column in fitting:
            shown.add_column(headings[column], min_width=widths[column], overflow="fold")
        for row in rows:
            shown.add_row(*(row[column] for column in fitting))
        console.print(shown)


def _fitting(widths: Sequence[int], available: int) -> list[list[int]]:
    """Columns of tables that fit into the available width, each with the first column.

    Example:
        >>> _fitting([4, 4, 4, 4], 24), _fitting([4, 4, 4, 4], 99)
        ([[0, 1, 2], [0, 3]], [[0, 1, 2, 3]])
    """
    frame = 3  # of a column, and one more
    tables = [[0]]
    for column in range(1, len(widths)):
        used = 1 + sum(widths[c] + frame for c in (*tables[-1], column))
        if used > available and len(tables[-1]) > 1:
            tables.append([0])
        tables[-1].append(column)
    return tables


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.6g}"


# The commands of a group: for each the first line of its help, and what builds it.
Entries = Mapping[str, tuple[str, Callable[[], Any]]]


class Command(TyperCommand):
    """A command whose help has its options in groups, and whose errors are one line."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                # typer adds the type to an argument's name
                record = (re.sub(r" <.*>$", "", record[0]), _unbroken(record[1]))
                usual = f"{parameter.param_type_name.capitalize()}s"
                heading = getattr(parameter, "rich_help_panel", None) or usual
                groups.setdefault(heading, []).append(record)
        for heading in sorted(groups, key=lambda one: one == "Options"):
            with formatter.section(heading):
                formatter.write_dl(groups[heading])

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.strip("{").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def get_help(self, ctx: Any) -> str:
        return _plain(super().get_help(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                raise
            fail(error.format_message(), WRONG_USE)


def _unbroken(text: str) -> str:
    """The same text with marks where names and defaults must not be broken into two lines."""
    default = re.sub(r"\[default: .*\]$", lambda found: found[0].replace(" ", SPACE), text)
    return re.sub(r"(?<=\w)-(?=\w)", HYPHEN, default)


def _plain(text: str) -> str:
    """Help without these marks, and with types as people expect them: `INT`, not `<int>`."""
    for shown, plain in (("<str>", "TEXT "), ("<int>", "INT  "), ("<float>", "FLOAT  "),
                         ("<path>", "PATH  "), ("<list[str]>", "TEXT       "),
                         ("<list[int]>", "INT        "), (HYPHEN, "-"), (SPACE, " ")):  # fmt: skip
        text = text.replace(shown, plain)
    return text


class LazyGroup(TyperGroup):
    """A group whose commands are built when they are called. `make_group` makes one."""

    entries: Entries
    noun: str

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.entries)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return self.entries[cmd_name][1]() if cmd_name in self.entries else None

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        if args[0] not in self.entries and not args[0].startswith("-"):
            expected = f"expected one of {', '.join(self.entries)}"
            fail(f"the {self.noun} is {args[0]!r}, {expected}", WRONG_USE)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section(f"{self.noun.capitalize()}s"):
            formatter.write_dl([(name, about) for name, (about, _) in self.entries.items()])


def make_group(about: str, entries: Entries, noun: str, name: str | None = None) -> typer.Typer:
    """A group of commands, each of which is called a `noun` in messages and in the usage line.
    A group with a name is the program itself."""
    kind = type("Group", (LazyGroup,), {"entries": entries, "noun": noun})
    app = typer.Typer(
        name=name, help=about, cls=kind, no_args_is_help=True, rich_markup_mode=None,
        add_completion=name is not None, pretty_exceptions_enable=False,
        subcommand_metavar=f"{noun.upper()} ...",
    )  # fmt: skip
    app.callback()(lambda: None)
    return app


def single_command(function: Callable[..., None]) -> typer.Typer:
    """An application of one command; its docstring is its help."""
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command(cls=Command)(function)
    return app


def load_app(path: str) -> Any:
    """The command that is defined as `module:application`, with plain help."""
    module, _, name = path.partition(":")
    command = get_command(getattr(import_module(module), name))
    _use_plain_help(command)
    return command


def _use_plain_help(command: Any) -> None:
    command.rich_markup_mode = None
    typer_help = command.get_help
    command.get_help = lambda ctx: _plain(typer_help(ctx))
    for inner in getattr(command, "commands", {}).values():
        _use_plain_help(inner)
