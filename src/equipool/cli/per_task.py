"""Commands that exist once for each task, with the task's flags."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer.core import TyperGroup

from equipool.cli.errors import WRONG_USE, fail, plain_errors
from equipool.cli.flags import TASK, Flag, check_apart, flags_of, given_flags
from equipool.cli.presets import PRESETS
from equipool.experiments.registry import TASKS
from equipool.training import Task

Options = TypeVar("Options")


@dataclass(frozen=True)
class Request:
    """What was asked for: the task, its flags, and which of them were given."""

    kind: type[Task]
    flags: list[Flag]
    given: dict[Flag, str]

    def words(self) -> list[str]:
        """The flags that were given, as on the command line."""
        return [word for flag, text in self.given.items() for word in (flag.option, text)]


class TaskGroup(TyperGroup):
    """Says which tasks there are where one is unknown."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        if args[0] not in self.commands:
            fail(f"the task is {args[0]!r}, expected one of {', '.join(self.commands)}", WRONG_USE)
        return super().resolve_command(ctx, args)


def task_commands(
    about: str, options: type[Options], body: Callable[[Request, Options], None]
) -> typer.Typer:
    """A group with a command for each task.

    Args:
        about: what the commands do.
        options: a dataclass whose fields are the options that do not depend on the task.
        body: is called with what was asked for.
    """
    app = typer.Typer(help=about, cls=TaskGroup, no_args_is_help=True)
    app.callback()(_nothing)  # or a group of one command would be that command
    for name, kind in TASKS.items():
        app.command(name, help=f"{about} {_presets(name)}")(_command(kind, options, body))
    return app


def _nothing() -> None: ...


def _presets(task: str) -> str:
    about = "; ".join(f"{name}: {preset.about}" for name, preset in PRESETS.get(task, {}).items())
    return f"Presets: {about}." if about else ""


def _command(
    kind: type[Task], options: type[Options], body: Callable[[Request, Options], None]
) -> Callable[..., None]:
    flags = flags_of(kind)
    own = [field.name for field in fields(options)]  # type: ignore[arg-type]

    # typer reads the signature, and calls with every parameter by its name
    def command(**values: Any) -> None:
        given = given_flags(flags, {flag.parameter: values[flag.parameter] for flag in flags})
        with plain_errors(WRONG_USE):
            check_apart(given, saved={})
        body(Request(kind, flags, given), options(**{name: values[name] for name in own}))

    parameters = _own_parameters(options) + [_flag_parameter(flag) for flag in flags]
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
        help=flag.about if flag.default is None else f"{flag.about} Default: {flag.default}",
        metavar="VALUE",
        show_default=False,
        rich_help_panel="Task" if flag.part == TASK else "Training",
    )
    return inspect.Parameter(
        flag.parameter,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[str | None, option],
        default=None,
    )
