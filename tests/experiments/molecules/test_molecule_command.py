"""`equipool train molecules` on a table of one's own."""

import dataclasses
import shutil

import pytest

import molecule_table
from commands import call
from equipool.experiments.data import using_data_folder
from equipool.experiments.molecules import MoleculeTask
from equipool.experiments.presets import EXPERIMENTS
from equipool.training import TrainingConfig, read_record

pytest.importorskip("rdkit")
pytest.importorskip("ogb")

TINY = molecule_table.TINY | {"--evaluate-every": "10", "--checkpoint-every": "10"}


@pytest.fixture
def table(tmp_path):
    """Rings with tails: whether there is oxygen, how many letters; one label is missing."""
    lines = ["structure,oxygen,letters,part"]
    for number, smiles in enumerate(molecule_table.MOLECULES):
        oxygen = "" if number == 3 else str(int("O" in smiles.upper().replace("CO", "O")))
        part = molecule_table.PARTS[number % 5]
        lines.append(f"{smiles},{oxygen},{len(smiles)},{part}")
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def equipool(tmp_path, monkeypatch):
    """The command, in a world where nothing has been prepared yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("EQUIPOOL_DATA", raising=False)
    with using_data_folder(tmp_path / "data"):
        yield call


def flags(table, **more):
    own = {"--csv": table, "--smiles": "structure", "--labels": "oxygen", "--split": "part"}
    return TINY | own | more


@pytest.mark.parametrize("split", ["part", "scaffold", "random"])
def test_a_table_is_trained_on_and_evaluated(equipool, table, tmp_path, split):
    out = tmp_path / "run"
    done = equipool("train", "molecules", flags(table) | {"--split": split}, "--out", out)
    assert f"table.csv: prepared molecules saved to {tmp_path / 'data'}" in done.output
    record = read_record(out / "record.json")
    assert record.complete
    assert record.config["fields"]["csv"] == str(table)
    assert record.config["training"]["aux_weight"] == 0.0  # the task has weights of its own
    equipool("evaluate", out, "--device", "cpu", "--which", "last")


def test_several_labels_with_commas(equipool, table, tmp_path):
    out = tmp_path / "run"
    given = flags(table) | {"--labels": "oxygen,letters", "--aux-weight": "0.5"}
    equipool("train", "molecules", given, "--out", out)
    record = read_record(out / "record.json")
    assert record.config["training"]["aux_weight"] == 0.5
    metrics = record.metrics
    assert {"valid_mae_oxygen", "valid_mae_letters"} < metrics.keys()
    assert metrics["valid_score"] == -metrics["valid_mae"]


@pytest.mark.parametrize(
    ("flag", "column", "advice"),
    [
        ("--labels", "nitrogen", "choose the label columns with --labels"),
        ("--smiles", "SMILES", "choose the SMILES column with --smiles"),
        ("--split", "scafold", "--split takes a column, scaffold or random"),
    ],
)
def test_a_column_that_is_not_there_is_named(equipool, table, tmp_path, flag, column, advice):
    given = flags(table) | {flag: column}
    done = equipool("train", "molecules", given, "--out", tmp_path / "run", status=1)
    assert f"no column '{column}'" in done.output
    assert f"; {advice}\n" in done.output


def test_columns_of_a_known_data_set_cannot_be_chosen(equipool, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "tox21.csv").write_text("SMILES,NR-AR\nCC,0\n")
    done = equipool(
        "train", "molecules", TINY | {"--dataset": "tox21"}, "--out", tmp_path / "run", status=1
    )
    assert "no column" in done.output
    assert "--" not in done.output.partition("no column")[2]


@pytest.mark.parametrize("command", ["train", "sweep", "ablate"])
def test_a_table_and_a_data_set_are_not_both_taken(equipool, table, tmp_path, command):
    given = flags(table) | {"--dataset": "tox21", "--out": tmp_path / "run"}
    done = equipool(command, "molecules", given, status=2)
    assert "give either --csv or --dataset, not both" in done.output
    assert not (tmp_path / "run").exists()


def test_a_run_on_a_table_does_not_go_on_with_a_data_set(equipool, table, tmp_path):
    out = tmp_path / "run"
    given = flags(table) | {"--dataset": "none", "--out": out, "--max-seconds": "1e-9"}
    equipool("train", "molecules", given, status=3)
    done = equipool("train", "molecules", "--out", out, "--resume", "--dataset", "tox21", status=2)
    assert f"--dataset contradicts the run, which has --csv {table}" in done.output
    equipool("train", "molecules", "--out", out, "--resume")


def test_runs_of_the_same_name_are_refused(equipool, table, tmp_path):
    other = tmp_path / "other" / table.name
    other.parent.mkdir()
    shutil.copy(table, other)
    given = flags(f"{table},{other}") | {"--out": tmp_path / "sweep"}
    done = equipool("sweep", "molecules", given, status=2)
    name = "csv-table-convolution-gin-equilibrium-seed-0"
    assert f"two of the runs would be called {name}" in done.output.replace("\n", " ")


def test_the_kind_of_the_labels_can_be_said(equipool, table, tmp_path):
    given = flags(table) | {"--kind": "regression"}
    equipool("train", "molecules", given, "--out", tmp_path / "run")
    record = read_record(tmp_path / "run" / "record.json")
    assert "valid_mae_oxygen" in record.metrics
    assert record.config["data"]["kind"] == "regression"
    given = flags(table) | {"--labels": "letters", "--kind": "classification"}
    done = equipool("train", "molecules", given, "--out", tmp_path / "other", status=1)
    assert "column 'letters': expected 0 or 1, found '8'" in done.output


def change(table):
    """The labels swap their names: the numbers of columns and rows stay."""
    lines = table.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "structure,oxygen,letters,part"
    table.write_text("\n".join(["structure,letters,oxygen,part", *lines[1:]]) + "\n", "utf-8")


def test_a_run_whose_table_has_changed_is_neither_gone_on_with_nor_evaluated(
    equipool, table, tmp_path
):
    out = tmp_path / "run"
    given = flags(table) | {"--labels": "none"}
    equipool("train", "molecules", given, "--out", out)
    equipool("evaluate", out, "--device", "cpu")
    change(table)
    changed = "data.labels: ['oxygen', 'letters'] in the run, ['letters', 'oxygen'] here"
    for words in (["evaluate", out, "--device", "cpu"],
                  ["train", "molecules", "--out", out, "--resume", "--device", "cpu"]):  # fmt: skip
        done = equipool(*words, status=1)
        assert changed in done.output
        assert "data.fingerprint" in done.output


def test_a_run_knows_its_table_from_another_folder(equipool, table, tmp_path, monkeypatch):
    out = tmp_path / "run"
    monkeypatch.chdir(tmp_path)
    given = flags(table) | {"--csv": "table.csv"}
    equipool("train", "molecules", given, "--out", out)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    equipool("evaluate", "../run", "--device", "cpu")


def test_a_table_that_changes_is_read_again_when_a_run_starts(table, tmp_path):
    task = MoleculeTask(csv=str(table), smiles="structure", split="part")
    with using_data_folder(tmp_path / "data"):
        before = task.data()
        change(table)
        assert task.data() is before  # as long as a run goes
        assert MoleculeTask(csv=str(table), smiles="structure", split="part").facts()["labels"] == [
            "letters", "oxygen",
        ]  # fmt: skip
        assert task.facts()["labels"] == ["letters", "oxygen"]
        assert task.data().molecules.label_names == ("letters", "oxygen")


def test_a_sweep_is_planned_without_the_data(equipool, table, tmp_path):
    out = tmp_path / "sweep"
    given = flags(table) | {"--aggregation": "sum,mean"}
    equipool("sweep", "molecules", given, "--out", out)
    table.unlink()
    shutil.rmtree(tmp_path / "data")  # with what was prepared of it
    again = equipool("sweep", "molecules", given, "--out", out)
    assert "2 finished, 0 to resume, 0 to start" in again.output


def test_presets_are_settings_of_the_task():
    for name, expected in (("quick", MoleculeTask.quick()), ("paper", MoleculeTask.paper())):
        preset = EXPERIMENTS["molecules"].presets[name]
        assert getattr(MoleculeTask, preset.recipe)() == expected
        assert TrainingConfig(**preset.training).aux_weight == 0  # the task has weights of its own
        for axis, values in preset.axes.items():
            for value in values:
                dataclasses.replace(expected, **{axis: value})
