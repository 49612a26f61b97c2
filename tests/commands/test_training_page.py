"""What the page about training shows."""

import re
import shlex

import pytest
from typer.main import get_command

from equipool.cli import make_app
from python_blocks import ROOT, run_page

PAGE = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
RECORDS = (ROOT / "records" / "README.md").read_text(encoding="utf-8")


def command_lines(text):
    lines = text.replace("\\\n", " ").splitlines()
    return [line.partition("#")[0] for line in lines if line.startswith("equipool ")]


@pytest.mark.parametrize("line", command_lines(PAGE) + command_lines(RECORDS))
def test_commands_have_the_flags_that_are_shown(line):
    _, *words = shlex.split(line)
    command = get_command(make_app())
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    assert not hasattr(command, "commands"), f"there is no {words[0]}"
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


def test_the_python_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page("docs/training.md")
    assert (tmp_path / "runs" / "python" / "record.json").exists()


def test_the_page_says_what_may_change():
    from equipool.training.config import FREE

    told = re.search(r"rounding alone, may change\s+\((.*?)\)", PAGE, re.DOTALL)
    assert told
    flags = set(re.findall(r"--([\w-]+)", told[1]))
    assert flags == {name.replace("_", "-") for name in FREE}
