"""`equipool train molecules` on a table of one's own."""

import pytest

import molecule_table
from commands import call
from equipool.training import read_record

pytest.importorskip("rdkit")
pytest.importorskip("ogb")


@pytest.fixture
def flags(tmp_path):
    molecule_table.write_table(tmp_path / "table.csv")
    return molecule_table.flags_for(tmp_path / "table.csv") | {"--out": tmp_path / "run"}


def test_a_table_is_trained_on_and_evaluated(flags, tmp_path, cache):
    given = flags | {"--split": "scaffold", "--labels": "oxygen,weight", "--aux-weight": "0.5"}
    done = call("train", "molecules", given)
    assert f"Prepared molecules: {cache / 'table-'}" in done.output
    record = read_record(tmp_path / "run" / "record.json")
    assert record.complete
    assert record.config["fields"]["csv"] == str(tmp_path / "table.csv")
    assert record.config["data"]["kind"] == "regression"
    assert {"valid_mae_oxygen", "valid_mae_weight"} < record.metrics.keys()
    call("evaluate", tmp_path / "run", "--device", "cpu")


def test_a_run_whose_table_has_changed_is_neither_resumed_nor_evaluated(flags, tmp_path):
    call("train", "molecules", flags | {"--labels": "none"})
    table = tmp_path / "table.csv"
    table.write_text(table.read_text().replace("oxygen,weight", "weight,oxygen"))
    for words in (["evaluate", tmp_path / "run", "--device", "cpu"],
                  ["train", "molecules", "--out", tmp_path / "run", "--resume"]):  # fmt: skip
        done = call(*words, status=1)
        assert (
            "data.labels: ['oxygen', 'weight'] in the run, ['weight', 'oxygen'] here" in done.output
        )
