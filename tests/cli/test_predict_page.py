"""What the page about molecules shows."""

import re
import shlex

import pytest
from test_documented_commands import PAGES

import molecule_table
from commands import call
from python_blocks import ROOT, run_page

pytest.importorskip("rdkit")
pytest.importorskip("ogb")

PAGE = (ROOT / "docs" / "molecules.md").read_text(encoding="utf-8")
LINES = PAGES["docs/molecules.md"]


def test_the_first_commands_and_the_python_do_what_they_say(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("EQUIPOOL_DATA", str(tmp_path / "data"))
    molecule_table.write_table(tmp_path / "mine.csv", smiles="smiles")
    text = (tmp_path / "mine.csv").read_text().replace("oxygen,weight", "active,toxic")
    (tmp_path / "mine.csv").write_text(text)
    (tmp_path / "new.csv").write_text("name,smiles\na,CCO\nb,C1CC\nc,c1ccoc1\n")
    shown = ["train molecules --csv mine.csv --smiles", "evaluate", "predict"]
    run = [line for line in LINES if any(line.startswith(one) for one in shown)]
    assert len(run) == 4
    for line in run:
        words = shlex.split(line)
        call(*words, *([molecule_table.TINY] if words[0] == "train" else []))
    rows = [line.split(",") for line in (tmp_path / "predictions.csv").read_text().splitlines()]
    block = re.search(r"```text\n(smiles,.*?)```", PAGE, re.DOTALL)
    told = [line.split(",") for line in block[1].splitlines()]
    assert [row[0] for row in rows] == [row[0] for row in told]
    assert [[bool(cell) for cell in row] for row in rows] == [
        [bool(cell) for cell in row] for row in told
    ]
    found = run_page("docs/molecules.md")["found"]
    assert found.values.shape == (3, 2)
    assert [problem.row for problem in found.problems] == [1]
