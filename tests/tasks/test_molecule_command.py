"""`equipool train molecules` on a table of one's own."""

import dataclasses
import json

import pytest
from typer.testing import CliRunner

from equipool.cli import make_app
from equipool.commands.presets import PRESETS
from equipool.data import using_data_folder
from equipool.tasks import MoleculeTask
from equipool.training import TrainingConfig, read_record

pytest.importorskip("rdkit")
pytest.importorskip("ogb")

TINY = {
    "--width": "8",
    "--depth": "2",
    "--potential": "12x8x4",
    "--inner-steps": "2",
    "--batch-size": "8",
    "--steps": "20",
    "--chunk": "10",
    "--log-every": "10",
    "--evaluate-every": "10",
    "--checkpoint-every": "10",
    "--device": "cpu",
}
CORES = ("C1CCCCC1", "c1ccccc1", "c1ccncc1", "C1CCNCC1", "c1ccoc1", "C1CC1")
ENDS = ("", "C", "CC", "CO", "CN", "CCO", "CCl", "C(=O)O")


@pytest.fixture
def table(tmp_path):
    """Rings with tails: whether there is oxygen, how many letters; one label is missing."""
    lines = ["structure,oxygen,letters,part"]
    for number, (core, end) in enumerate((core, end) for core in CORES for end in ENDS):
        smiles = core + end
        oxygen = "" if number == 3 else str(int("O" in smiles.upper().replace("CO", "O")))
        part = ("train", "train", "train", "valid", "test")[number % 5]
        lines.append(f"{smiles},{oxygen},{len(smiles)},{part}")
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def equipool(tmp_path, monkeypatch):
    """The command, in a world where nothing has been prepared yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("EQUIPOOL_DATA", raising=False)
    app = make_app()

    def call(*arguments):
        words = []
        for argument in arguments:
            pairs = argument.items() if isinstance(argument, dict) else ()
            words += [part for pair in pairs for part in pair] or [argument]
        with using_data_folder(tmp_path / "data"):
            return CliRunner().invoke(app, [str(word) for word in words])

    return call


def flags(table, **more):
    own = {"--csv": table, "--smiles": "structure", "--labels": "oxygen", "--split": "part"}
    return TINY | own | more


@pytest.mark.parametrize("split", ["part", "scaffold", "random"])
def test_a_table_is_trained_on_and_evaluated(equipool, table, tmp_path, split):
    out = tmp_path / "run"
    done = equipool("train", "molecules", flags(table) | {"--split": split}, "--out", out)
    assert done.exit_code == 0, done.output
    record = read_record(out / "record.json")
    assert record.complete
    assert record.config["fields"]["csv"] == str(table)
    again = equipool("evaluate", out, "--device", "cpu", "--which", "last")
    assert again.exit_code == 0, again.output


def test_several_labels_with_commas(equipool, table, tmp_path):
    out = tmp_path / "run"
    given = flags(table) | {"--labels": "oxygen,letters"}
    done = equipool("train", "molecules", given, "--out", out)
    assert done.exit_code == 0, done.output
    metrics = read_record(out / "record.json").metrics
    assert {"valid_mae_oxygen", "valid_mae_letters"} < metrics.keys()
    assert metrics["valid_score"] == -metrics["valid_mae"]


def test_a_column_that_is_not_there_is_named(equipool, table, tmp_path):
    given = flags(table) | {"--labels": "nitrogen"}
    done = equipool("train", "molecules", given, "--out", tmp_path / "run")
    assert done.exit_code != 0
    assert "nitrogen" in done.output


def test_data_that_is_not_there_is_said(equipool, tmp_path):
    done = equipool("train", "molecules", TINY | {"--dataset": "tox21"}, "--out", tmp_path / "run")
    assert done.exit_code != 0
    assert "tox21" in done.output.lower()


def test_presets_are_settings_of_the_task():
    for name, expected in (("quick", MoleculeTask.quick()), ("paper", MoleculeTask.paper())):
        preset = PRESETS["molecules"][name]
        fields = {key: tuple(v) if isinstance(v, list) else v for key, v in preset.fields.items()}
        assert MoleculeTask(**fields) == expected
        assert TrainingConfig(**preset.training).aux_weight == 0  # the task has weights of its own
        for axis, values in preset.axes.items():
            for value in values:
                dataclasses.replace(expected, **{axis: value})
        json.dumps(preset.fields)
