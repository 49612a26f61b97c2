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


TRAIN, SWEEP, ABLATE = (("train", "median"), ("sweep", "median"), ("ablate", "molecules"))
REFUSED = {
    ("trian",): "the command is 'trian', expected one of train",
    ("train", "medan"): "the task is 'medan', expected one of median",
    (*TRAIN, "--preset", "slow"): "--preset is 'slow', expected one of quick, paper",
    TRAIN: "--steps is missing: give a number, or choose a --preset",
    (*TRAIN, "--steps"): "'--steps' requires an argument",
    (*TRAIN, "--steps", "many"): "--steps is 'many', expected a whole number",
    (*TRAIN, "--steps", 0): "steps is 0, expected 1 or more",
    (*TRAIN, "--out", "RUN", "--resume"): "--resume: RUN has no run of median",
    (*TRAIN, "--out", "RUN", "--resume", "--seed", 1): "RUN has no run of median",
    (*TRAIN, "--out", "RUN"): "--steps is missing",
    (*TRAIN, "--resume"): "--resume requires --out, the directory of the run",
    ("train", "molecules", "--csv", "a.csv", "--dataset", "qm9"): "give either --csv or --dataset",
    ("evaluate",): "Missing argument 'RUN'",
    ("evaluate", "run", "--wich", "last"): "No such option: --wich",
    ("evaluate", ".", "--which", "first"): "'first' is not one of 'best', 'last'",
    ("evaluate", "."): "holds no run: it has no config.json",
    (*ABLATE, "--only", "steps,width"): "--only has 'width', expected some of steps, aux-weight",
    ABLATE: "--steps is missing",
    (*ABLATE, "--steps", 1, "--preset", "nothing"): "--preset is 'nothing'",
    (*ABLATE, "--steps", 1, "--max-seconds", "-1"): "--max-seconds is -1",
    ("ablate", "median"): "the task is 'median', expected one of molecules",
}
REFUSED |= {
    (*TRAIN, "--steps", 1, flag, value): f"'{value}', expected {expected}"
    for flag, value, expected in (
        ("--capture", "yes", "true or false or none"),
        ("--schedule", "square", "one of ['constant'"),
        ("--precision", "8", "one of ['32-true'"),
        ("--aggregation", "summ", "one of ['equilibrium', 'sum'"),
        ("--device", "abacus", "'cpu' or 'cuda', or auto"),
    )
}
REFUSED |= {
    (*SWEEP, "--steps", 1, flag, value): message
    for flag, value, message in (
        ("--aggregation", "sum,summ", "'summ', expected one of"),
        ("--seed", "0,one", "--seed is 'one', expected a whole number"),
        ("--seed", "", "--seed is '', expected a whole number"),
        ("--preset", "slow", "--preset is 'slow', expected one of quick, paper"),
        ("--max-seconds", "-1", "--max-seconds is -1, expected more than 0"),
    )
}


@pytest.mark.parametrize(("words", "message"), REFUSED.items())
def test_what_cannot_be_is_refused_in_one_line(refused, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    refused(words, message, status=(1,) if words == ("evaluate", ".") else (WRONG_USE,))
    assert not list(tmp_path.iterdir())
