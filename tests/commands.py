"""Calls of the command `equipool`."""

from typer.testing import CliRunner

from equipool.cli import make_app


def call(*arguments, status=0, text=None):
    """`equipool` with these arguments; a dictionary is flags and their values. The command must end
    with this status; None for any."""
    words = []
    for argument in arguments:
        pairs = argument.items() if isinstance(argument, dict) else ()
        words += [part for pair in pairs for part in pair] or [argument]
    words = [str(word) for word in words]
    done = CliRunner().invoke(make_app(words), words, input=text)
    assert status in (None, done.exit_code), done.output
    return done
