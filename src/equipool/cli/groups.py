"""Groups of commands that are built when they are called, and commands that exist per task."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from importlib import import_module
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from equipool.cli import console
from equipool.cli.flags import Flag, check_apart, flags_of
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
            expected = f"expected one of {', '.join(self.entries)}"
            console.fail(f"the {self.noun} is {args[0]!r}, {expected}", console.WRONG_USE)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section(f"{self.noun.capitalize()}s"):
            formatter.write_dl([(name, entry.about) for name, entry in self.entries.items()])


def make_group(
    about: str, entries: Mapping[str, Entry], noun: str, name: str | None = None
) -> typer.Typer:
    """A group of commands, each of which is called a `noun` in messages and in the usage line.
    A group with a name is the program itself."""
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
    tasks: Iterable[str] = tuple(EXPERIMENTS),
) -> typer.Typer:
    """A group with a command for each task.

    Args:
        about: what the commands do; the first line of the help, then the rest.
        options: a dataclass whose fields are the options that do not depend on the task.
        body: is called with what was typed.
        tasks: that have the command.
    """
    entries = {
        task: Entry(EXPERIMENTS[task].about, partial(_build, task, about, options, body))
        for task in tasks
    }
    return make_group(about, entries, "task")


def _build(
    task: str, about: str, options: type[Options], body: Callable[[Request, Options], None]
) -> Any:
    flags = flags_of(task)
    hints = get_type_hints(options, include_extras=True)
    own = {field.name: field.default for field in fields(options)}  # type: ignore[arg-type]

    # typer reads the signature, and calls with every parameter by its name
    def command(**values: Any) -> None:
        typed = {flag: values[flag.parameter] for flag in flags}
        given = {flag: text for flag, text in typed.items() if text is not None}
        with console.plain_errors(console.WRONG_USE):
            check_apart(given, saved={})
        body(Request(task, flags, given), options(**{name: values[name] for name in own}))

    parameters = [_parameter(flag.parameter, _option(flag), None) for flag in flags]
    parameters += [_parameter(name, hints[name], default) for name, default in own.items()]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    presets = EXPERIMENTS[task].presets.items()
    listed = "\n".join(f"  {name:<6} {preset.about}" for name, preset in presets)
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command(task, cls=Command, help=f"{about}\n\n\b\nPresets:\n{listed}")(command)
    return get_command(app)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _option(flag: Flag) -> Any:
    default = "" if flag.default is None else f"  [default: {flag.default}]"
    option = typer.Option(
        flag.option, help=flag.about + default, metavar=flag.reader.metavar, show_default=False,
        hidden=flag.hidden, rich_help_panel=flag.group,
    )  # fmt: skip
    return Annotated[str | None, option]
