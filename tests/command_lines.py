"""Commands that pages show."""

import shlex

from typer.main import get_command

from equipool.cli import make_app


def command_lines(text):
    """Those of a page, without the comments behind them."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line.partition(" #")[0] for line in lines if line.startswith("equipool ")]


def check_flags(line):
    """That the command has the flags that are shown."""
    _, *words = shlex.split(line)
    command = get_command(make_app())
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    assert not hasattr(command, "commands"), f"there is no {words[0]}"
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known
