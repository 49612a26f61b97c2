"""What the page about training shows."""

import re

import pytest

from command_lines import check_flags, command_lines
from python_blocks import ROOT, run_page

PAGE = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("line", command_lines(PAGE))
def test_commands_have_the_flags_that_are_shown(line):
    check_flags(line)


def test_the_python_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page("docs/training.md")
    assert (tmp_path / "runs" / "python" / "record.json").exists()


def test_the_page_says_what_may_change():
    from equipool.training.config import FREE

    told = re.search(r"beyond\s+rounding may differ\s+\((.*?)\)", PAGE, re.DOTALL)
    assert told
    flags = set(re.findall(r"--([\w-]+)", told[1]))
    assert flags == {name.replace("_", "-") for name in FREE}
