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


def test_stopped_resumed_and_evaluated(equipool, tmp_path, stop_at):
    whole, broken, place = tmp_path / "whole", tmp_path / "broken", tmp_path / "data"
    place.mkdir()
    tiny.write_archive(place)
    data = {"--data-dir": place}
    equipool("train", "omniglot", TINY | data, "--out", whole)
    stop_at(37)
    stopped = equipool("train", "omniglot", TINY | data, "--out", broken, status=3)
    how = f"equipool train omniglot --out {broken} --resume --device cpu --data-dir {place}"
    assert how in stopped.output
    equipool(*how.split()[1:])
    assert numbers(broken) == numbers(whole)
    found = equipool("evaluate", broken, "--device", "cpu", data)
    stored = json.loads((broken / "evaluation-best.json").read_text())
    record = read_record(broken / "record.json")
    assert str(place) not in json.dumps(record.config)  # where the data is does not identify a run
    assert stored["metrics"] == pytest.approx(record.best["metrics"])
    assert "Tables are in" in found.output
    assert list((broken / "results-best").glob("*.csv"))
