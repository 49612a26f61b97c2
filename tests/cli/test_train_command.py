"""`equipool train` and `equipool evaluate`."""

import json
import shlex
import subprocess
import sys

import pytest

from equipool.training import read_record
from finished_runs import assert_same_run

PARTS = {
    "--solver": "newton:damping=0.1", "--inner-steps": "to-tolerance:max_steps=3",
    "--differentiation": "implicit:linear_solver=cholesky", "--start": "learned:value=0.5",
}  # fmt: skip


def test_flags_reach_the_run_and_its_record(equipool, tiny, tmp_path):
    out = tmp_path / "run"
    flags = tiny | {"--aggregation": "sum", "--seed": "3", "--clip-norm": "none", "--out": out}
    done = equipool("train", "median", flags)
    written = read_record(out / "record.json")
    assert (written.config["fields"]["aggregation"], written.seed) == ("sum", 3)
    assert written.config["training"]["clip_norm"] is None
    assert f"{written.metrics['mse']:.6g}" in done.output


def test_a_stopped_run_resumes_with_the_command_that_is_printed(equipool, tiny, tmp_path, stop_at):
    whole, broken = tmp_path / "whole", tmp_path / "in two pieces"
    equipool("train", "median", tiny | PARTS, "--out", whole)
    stop_at(7)
    stopped = equipool("train", "median", tiny | PARTS, "--out", broken, status=3)
    assert "interrupted at step 7 of 20" in stopped.output
    _, _, command = stopped.output.partition("To resume: equipool ")
    done = equipool(*shlex.split(command.splitlines()[0]))
    assert "from step 7 to 20" in done.output
    assert_same_run(broken, whole)


def test_settings_of_a_run_cannot_be_changed(equipool, tiny, tmp_path):
    out = tmp_path / "run"
    equipool("train", "median", tiny | PARTS, "--out", out)
    again = equipool("train", "median", tiny | PARTS, "--out", out, status=1)
    assert "already holds a run" in again.stderr
    changed = ("--out", out, "--resume", "--width", 6, "--solver", "newton:damping=0.2")
    other = equipool("train", "median", *changed, status=1)
    assert "task.width: 4 in the run, 6 here" in other.stderr
    assert "task.solver: 'newton:damping=0.1' in the run, 'newton:damping=0.2'" in other.stderr
    preset = equipool("train", "median", "--out", out, "--resume", "--preset", "quick", status=1)
    assert "task.width: 4 in the run, 64 here" in preset.stderr


def test_a_time_limit_stops_and_saves_in_a_directory_named_after_the_run(
    equipool, tiny, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    flags = tiny | {"--aggregation": "max", "--max-seconds": "1e-9"}
    assert "time limit reached at step 1" in equipool("train", "median", flags, status=3).output
    assert (tmp_path / "runs" / "median" / "max-embedding-4-seed-0" / "config.json").exists()


def test_a_recipe_is_overridden_by_flags_and_resumed_without(equipool, tiny, tmp_path, stop_at):
    out = tmp_path / "run"
    stop_at(7)
    words = ("--recipe", "converging", "--regularizer-weight", "0.5", "--out", out)
    done = equipool("train", "median", tiny, *words, status=3)
    assert "--recipe" not in done.output.partition("To resume:")[2]
    equipool("train", "median", "--out", out, "--resume", "--device", "cpu")
    config = read_record(out / "record.json").config
    assert (config["fields"]["inner_steps"], config["fields"]["regularizer_weight"]) == (2, 0.5)
    assert config["fields"]["differentiation"] == "truncated:num_steps=5"
    assert config["training"]["aux_weight"] == 1e-3


def test_evaluation_is_that_of_the_run(equipool, tiny, tmp_path):
    out = tmp_path / "run"
    steps = ("--inner-steps", "random:min_steps=1,max_steps=4")
    equipool("train", "median", tiny, *steps, "--out", out)
    record = read_record(out / "record.json")
    for which, expected in (("best", record.best["metrics"]), ("last", record.metrics)):
        done = equipool("evaluate", out, "--which", which, "--device", "cpu")
        stored = json.loads((out / f"evaluation-{which}.json").read_text())
        assert stored["metrics"] == pytest.approx(expected)
        assert f"{stored['metrics']['mse']:.6g}" in done.output
    words = ("--over-steps", "8,4, 1", "--which", "last", "--device", "cpu")
    done = equipool("evaluate", out, *words)
    rows = json.loads((out / "over-steps-last.json").read_text())["over_steps"]
    assert [row["num_steps"] for row in rows] == [1, 4, 8]
    assert rows[1]["metrics"] == pytest.approx(record.metrics)
    assert f"{rows[2]['metrics']['mse']:.6g}" in done.output


TRAIN, SWEEP = ("train", "median"), ("sweep", "median")
WRONG = {
    ("trian",): "No such command 'trian'",
    (*TRAIN, "--sed", "1"): "No such option: --sed",
    TRAIN: "steps is missing",
    (*TRAIN, "--steps", 0): "--steps is 0, expected a whole number at least 1",
    (*TRAIN, "--steps", 1, "--aggregation", "summ"): "expected one of equilibrium, location",
    (*TRAIN, "--steps", 1, "--device", "abacus"): "expected 'cpu' or 'cuda'",
    ("evaluate", "RUN"): "RUN holds no run",
    ("evaluate", "RUN", "--over-steps", "1,x"): "--over-steps is 'x', expected a whole number",
    (*TRAIN, "--resume"): "--resume requires --out, the directory of the run",
    ("train", "molecules", "--steps", 1, "--csv", "a.csv", "--dataset", "molhiv"): "contradicts",
    (*SWEEP, "--steps", 1, "--aggregation", "sum,summ"): "'summ', expected one of",
}


@pytest.mark.parametrize(("words", "message"), WRONG.items())
def test_a_wrong_command_line_is_refused_and_leaves_nothing(
    equipool, tmp_path, monkeypatch, words, message
):
    monkeypatch.chdir(tmp_path)
    done = equipool(*words, status=None)
    assert done.exit_code == (1 if words[0] == "evaluate" else 2)
    assert message in " ".join(done.stderr.split())
    assert not list(tmp_path.iterdir())


def test_only_help_of_experiments_imports_torch():
    """And `python -m equipool` is the command."""
    code = """
import runpy, sys
sys.argv = ["equipool", *sys.argv[1:]]
try:
    runpy.run_module("equipool", run_name="__main__")
finally:
    print([name for name in ("torch", "numpy", "pyarrow") if name in sys.modules])
"""
    commands = ((), ("fit",), ("predict",), ("influence",), ("compare",), ("explore",))
    started = [
        subprocess.Popen([sys.executable, "-c", code, *words, "--help"], stdout=subprocess.PIPE)
        for words in commands
    ]
    for process in started:
        output = process.communicate()[0].decode()
        assert process.returncode == 0
        assert output.splitlines()[0].startswith("Usage: ")
        assert output.splitlines()[-1] == "[]"
