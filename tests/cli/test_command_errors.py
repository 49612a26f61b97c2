"""Errors as whoever types a command wants them."""

import subprocess
import sys

import pytest
import typer

from equipool.cli.console import WRONG_USE, plain_errors


@pytest.mark.parametrize("error", [ValueError("no"), FileNotFoundError("no"), ImportError("no")])
def test_what_lies_outside_the_program_is_a_message(error, capsys):
    with pytest.raises(typer.Exit) as ended, plain_errors(WRONG_USE):
        raise error
    assert ended.value.exit_code == WRONG_USE
    assert capsys.readouterr().err == "Error: no\n"


def test_a_mistake_of_the_program_keeps_its_traceback():
    with pytest.raises(KeyError), plain_errors():
        raise KeyError("no")


TALKATIVE = """
import typer
from equipool.cli.console import plain_errors

def main():
    with plain_errors():
        for number in range(100_000):
            print(number)

typer.run(main)
"""


def test_a_reader_who_leaves_is_no_error():
    """As in `equipool predict ... | head`."""
    command = [sys.executable, "-c", TALKATIVE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as talking:
        assert talking.stdout.readline() == b"0\n"
        talking.stdout.close()
        assert talking.stderr.read() == b""
        assert talking.wait() == 1
