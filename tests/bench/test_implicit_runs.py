"""benchmarks/implicit.py."""

import json

import implicit
from typer.testing import CliRunner

from equipool.experiments.registry import MedianTask
from equipool.training import TrainingConfig, train


def test_a_run_is_compared_at_every_number_of_steps(tmp_path):
    task = MedianTask(embedding=2, width=4, batch_size=4, set_size=6, evaluation_sets=8)
    run, out = tmp_path / "run", tmp_path / "record.json"
    train(task, TrainingConfig(2, chunk=1), run, device="cpu", progress=False)
    words = [str(run), "--sets", "3", "--repeats", "1", "--out", str(out)]
    done = CliRunner().invoke(implicit.app, words)
    assert done.exit_code == 0, done.output
    (found,) = json.loads(out.read_text())["runs"]
    assert (found["task"], found["sets"]) == ("median", 3)
    assert list(found["steps"]) == ["20", "50", "100"]
    for comparison in found["steps"].values():
        assert [row["method"] for row in comparison["rows"]] == list(implicit.METHODS)
