"""Counting characters from end to end, on a tiny data set."""

import json

import pytest

import tiny_omniglot as tiny
from equipool.training import read_record
from finished_runs import numbers

TINY = {
    "--aggregation": "equilibrium", "--embedding": "8", "--batch-size": "16", "--set-size": "5",
    "--max-classes": "2", "--image-size": "8", "--validation-characters": "6", "--encoder": "4x8",
    "--head-width": "16", "--potential": "16x16x4", "--inner-steps": "2",
    "--evaluation-sets": "200", "--steps": "60", "--learning-rate": "0.003", "--chunk": "10",
    "--log-every": "10", "--evaluate-every": "15", "--checkpoint-every": "15", "--device": "cpu",
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the tiny data set."""
    folder = tmp_path_factory.mktemp("omniglot")
    tiny.write_archive(folder)
    return folder


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """Unless it is said, there is no data, and nothing is downloaded."""
    monkeypatch.setenv("EQUIPOOL_DATA", str(tmp_path / "nothing"))
    monkeypatch.setattr("equipool.experiments.omniglot.data.fetch", None)


def test_stopped_resumed_evaluated_and_reported(equipool, tmp_path, place, stop_at):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    data = {"--data-dir": place}
    equipool("train", "omniglot", TINY | data, "--out", whole)
    stop_at(37)
    stopped = equipool("train", "omniglot", TINY | data, "--out", broken, status=3)
    how = f"equipool train omniglot --out {broken} --resume --device cpu --data-dir {place}"
    assert how in stopped.output
    equipool(*how.split()[1:])
    assert numbers(broken) == numbers(whole)
    swept = equipool("sweep", "omniglot", TINY | data, "--out", tmp_path)
    assert "1 finished, 0 to train" in swept.output

    found = equipool("evaluate", broken, "--device", "cpu", data)
    stored = json.loads((broken / "evaluation-best.json").read_text())
    record = read_record(broken / "record.json")
    assert str(place) not in json.dumps(record.config)  # where the data is does not identify a run
    assert stored["metrics"] == pytest.approx(record.best["metrics"])
    assert "Tables are in" in found.output
    assert list((broken / "results-best").glob("*.csv"))
    shown = equipool("report", broken, whole, "--out", tmp_path / "page.html")
    assert "validation_accuracy  best validation_accuracy  test_accuracy there" in shown.output
