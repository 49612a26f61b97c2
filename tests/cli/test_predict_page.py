"""What the page about molecules shows."""

import re
import shlex

import pytest

import molecule_table
from command_lines import check_flags, command_lines
from commands import call
from equipool.cli.sweep import CAPACITIES, STUDIES
from equipool.experiments.molecules import MoleculeTask
from equipool.experiments.molecules.data import DATASETS
from python_blocks import ROOT, run_page

pytest.importorskip("rdkit")
pytest.importorskip("ogb")

PAGE = (ROOT / "docs" / "molecules.md").read_text(encoding="utf-8")
LINES = command_lines(PAGE)


@pytest.mark.parametrize("line", LINES)
def test_commands_have_the_flags_that_are_shown(line):
    check_flags(line)


def test_the_table_of_flags_is_true():
    flags = set(re.findall(r"^\| `(--[\w-]+)", PAGE, re.MULTILINE)) - {"--dataset"}
    fields = {f"--{name.replace('_', '-')}" for name in MoleculeTask.__dataclass_fields__}
    assert flags
    assert flags <= fields


def test_every_data_set_and_ablation_is_told():
    assert set(re.findall(r"^\| `(\w+)` \| [^|]*\| ", PAGE, re.MULTILINE)) >= set(DATASETS)
    for name, study in STUDIES["molecules"].items():
        (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |")]
        network = study.fixed["convolution"].upper()
        assert row.endswith(f"| {network} |")
        values = (study.values or "").replace(",", ", ")
        assert values in row
    told = re.search(r"layers: ([\d, and]+) %", PAGE)
    shares = [int(number) for number in re.findall(r"\d+", told[1])]
    assert shares == [round(100 * share) for share in CAPACITIES]


def test_the_first_commands_and_the_python_do_what_they_say(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("EQUIPOOL_DATA", str(tmp_path / "data"))
    molecule_table.write_table(tmp_path / "mine.csv", smiles="smiles")
    text = (tmp_path / "mine.csv").read_text().replace("oxygen,weight", "active,toxic")
    (tmp_path / "mine.csv").write_text(text)
    (tmp_path / "new.csv").write_text("name,smiles\na,CCO\nb,C1CC\nc,c1ccoc1\n")
    shown = ["train molecules --csv mine.csv --smiles", "evaluate", "predict"]
    run = [line for line in LINES if any(line.startswith(f"equipool {one}") for one in shown)]
    assert len(run) == 4
    for line in run:
        _, *words = shlex.split(line)
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
