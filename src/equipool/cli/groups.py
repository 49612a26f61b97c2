"""Groups of commands that are built when they are called, and commands that exist per task."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from importlib import import_module
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from equipool.cli import console
from equipool.cli.flags import Flag, check_apart, flags_of, given_flags
from equipool.experiments.presets import EXPERIMENTS

Options = TypeVar("Options")
HYPHEN, SPACE = "\u2011", "\u00a0"  # that no line is broken at
UsageError: Any = typer.BadParameter.__base__  # typer has no public name for it


@dataclass(frozen=True)
class Entry:
    """A command of a group: the first line of its help, and what builds it."""

    about: str
    build: Callable[[], Any]


class Command(TyperCommand):
    """A command whose help has its options in groups, and whose errors are one line."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                # typer adds the type to an argument's name
                record = (re.sub(r" <.*>$", "", record[0]), _unbroken(record[1]))
                argument = parameter.param_type_name == "argument"
                usual = "Arguments" if argument else "Options"
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
            console.fail(error.format_message(), console.WRONG_USE)


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

    entries: Mapping[str, Entry]
    noun: str

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.entries)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return self.entries[cmd_name].build() if cmd_name in self.entries else None

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        if args[0] not in self.entries and not args[0].startswith("-"):
            known = ", ".join(self.entries)
            console.fail(
                f"the {self.noun} is {args[0]!r}, expected one of {known}", console.WRONG_USE
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section(f"{self.noun.capitalize()}s"):
            formatter.write_dl([(name, entry.about) for name, entry in self.entries.items()])


def make_group(
    about: str, entries: Mapping[str, Entry], noun: str, name: str | None = None
) -> typer.Typer:
    """A group of commands.

    Args:
        about: its help.
        entries: its commands.
        noun: what a command of it is called in messages and in the usage line.
        name: of the program.
    """
    kind = type("Group", (LazyGroup,), {"entries": entries, "noun": noun})
    app = typer.Typer(
        name=name,
        help=about,
        cls=kind,
        no_args_is_help=True,
        rich_markup_mode=None,
        add_completion=name is not None,
        pretty_exceptions_enable=False,
        subcommand_metavar=f"{noun.upper()} ...",
    )
    app.callback()(_no_options)
    return app


def _no_options() -> None: ...


def single_command(function: Callable[..., None]) -> typer.Typer:
    """An application of one command; its docstring is its help."""
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command(cls=Command)(function)
    return app


def load_app(module: str) -> Any:
    """The command that a module defines as `app`, with plain help."""
    command = get_command(import_module(module).app)
    _use_plain_help(command)
    return command


def _use_plain_help(command: Any) -> None:
    command.rich_markup_mode = None
    typer_help = command.get_help
    command.get_help = lambda ctx: _plain(typer_help(ctx))
    for inner in getattr(command, "commands", {}).values():
        _use_plain_help(inner)


@dataclass(frozen=True)
class Request:
    """What was typed: the task, its flags, and which of them were given."""

    task: str
    flags: tuple[Flag, ...]
    given: dict[Flag, str]

    def words(self) -> list[str]:
        """The flags that were given, as they were typed."""
        return [word for flag, text in self.given.items() for word in (flag.option, text)]


def task_commands(
    about: str,
    options: type[Options],
    body: Callable[[Request, Options], None],
    tasks: tuple[str, ...] = tuple(EXPERIMENTS),
) -> typer.Typer:
    """A group with a command for each task.

    Args:
        about: what the commands do; the first line of the help, then the rest.
        options: a dataclass whose fields are the options that do not depend on the task.
        body: is called with what was typed.
        tasks: that have the command.
    """
    entries = {
        task: Entry(EXPERIMENTS[task].about, lambda task=task: _build(task, about, options, body))  # type: ignore[misc]
        for task in tasks
    }
    return make_group(about, entries, "task")


def _build(
    task: str, about: str, options: type[Options], body: Callable[[Request, Options], None]
) -> Any:
    presets = EXPERIMENTS[task].presets.items()
    listed = "\n".join(f"  {name:<6} {preset.about}" for name, preset in presets)
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    help = f"{about}\n\n\b\nPresets:\n{listed}"
    app.command(task, cls=Command, help=help)(_command(task, options, body))
    return get_command(app)


def _command(
    task: str, options: type[Options], body: Callable[[Request, Options], None]
) -> Callable[..., None]:
    flags = flags_of(task)
    own = [field.name for field in fields(options)]  # type: ignore[arg-type]

    # typer reads the signature, and calls with every parameter by its name
    def command(**values: Any) -> None:
        given = given_flags(flags, {flag.parameter: values[flag.parameter] for flag in flags})
        with console.plain_errors(console.WRONG_USE):
            check_apart(given, saved={})
        body(Request(task, flags, given), options(**{name: values[name] for name in own}))

    parameters = [_flag_parameter(flag) for flag in flags] + _own_parameters(options)
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _own_parameters(options: type) -> list[inspect.Parameter]:
    hints: Mapping[str, Any] = get_type_hints(options, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hints[field.name],
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
        )
        for field in fields(options)
    ]


def _flag_parameter(flag: Flag) -> inspect.Parameter:
    option = typer.Option(
        flag.option,
        help=flag.about if flag.default is None else f"{flag.about}  [default: {flag.default}]",
        metavar=flag.reader.metavar,
        show_default=False,
        hidden=flag.hidden,
        rich_help_panel=flag.group,
    )
    return inspect.Parameter(
        flag.parameter,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[str | None, option],
        default=None,
    )
