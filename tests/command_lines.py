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
    command = get_command(make_app(words))
    while words and hasattr(command, "list_commands"):
        found = command.get_command(None, words[0])
        if found is None:
            break
        command, words = found, words[1:]
    assert not hasattr(command, "list_commands") or words[0].startswith("-"), f"no {words[0]}"
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known
