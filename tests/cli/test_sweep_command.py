"""`equipool sweep`."""

import os
import re
import signal
import subprocess
import sys
from itertools import product
from unittest.mock import Mock

import pytest
import torch.distributed as dist

from equipool import training
from equipool.experiments.common import EXPERIMENTS, Preset
from equipool.experiments.median import MedianTask
from equipool.files import StorageError
from equipool.training import read_record

AXES = {"--aggregation": "sum,max", "--seed": "0,1"}


def events(folder):
    """What happened in each run."""
    logs = {log.parent.name: log.read_text() for log in folder.glob("*/log.jsonl")}
    words = ("start", "resume", "finish")
    return {
        name: [word for word in words for _ in range(log.count(f'"event": "{word}"'))]
        for name, log in logs.items()
    }


def test_every_combination_is_trained_once(equipool, tiny, tmp_path):
    done = equipool("sweep", "median", tiny | AXES, "--out", tmp_path)
    assert "4 runs" in done.output
    assert "0 finished, 4 to train" in done.output
    for aggregation, seed in product(("sum", "max"), (0, 1)):
        record = read_record(tmp_path / f"{aggregation}-embedding-4-seed-{seed}" / "record.json")
        fields = record.config["fields"]
        assert (fields["aggregation"], fields["seed"]) == (aggregation, seed)
    before = events(tmp_path)

    flags = tiny | AXES | {"--seed": "0,1,2", "--aggregation": "max,sum"}
    again = equipool("sweep", "median", flags, "--out", tmp_path)
    assert "4 finished, 2 to train" in again.output
    assert re.search(r"^method +mse +best mse", again.output, re.MULTILINE)
    after = events(tmp_path)
    assert {name: after[name] for name in before} == before
    assert len(after) == 6


def test_a_stopped_sweep_resumes_with_the_same_command(equipool, tiny, tmp_path, stop_at):
    stop_at(29)
    stopped = equipool("sweep", "median", tiny | AXES, "--out", tmp_path, status=3)
    assert "1 of 4 runs are finished. To resume, repeat this command" in stopped.output
    done = equipool("sweep", "median", tiny | AXES, "--out", tmp_path)
    assert "1 finished, 3 to train" in done.output
    happened = events(tmp_path)
    assert happened["sum-embedding-4-seed-0"] == ["start", "finish"]
    assert happened["sum-embedding-4-seed-1"] == ["start", "resume", "finish"]
    assert len(happened) == 4


def test_a_time_limit_holds_for_all_runs(equipool, tiny, tmp_path):
    flags = tiny | AXES | {"--out": tmp_path, "--max-seconds": "1e-6"}
    done = equipool("sweep", "median", flags, status=3)
    assert "0 of 4 runs are finished" in done.output
    assert not list(tmp_path.iterdir())


def test_a_signal_in_the_last_evaluation_of_a_run_ends_the_sweep(
    equipool, tiny, tmp_path, monkeypatch
):
    evaluate, evaluations = MedianTask.evaluate, []

    def evaluate_and_signal(self, *arguments):
        evaluations.append(self.seed)
        if len(evaluations) == 2:  # at the end of the first run
            os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(self, *arguments)

    monkeypatch.setattr(MedianTask, "evaluate", evaluate_and_signal)
    done = equipool("sweep", "median", tiny | AXES, "--out", tmp_path, status=3)
    assert "1 of 4 runs are finished" in done.output
    assert list(events(tmp_path).values()) == [["start", "finish"]]


@pytest.mark.processes
@pytest.mark.skipif(not dist.is_gloo_available(), reason="torch is built without gloo")
def test_two_processes_sweep(tiny, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    flags = tiny | {"--aggregation": "sum", "--seed": "0,1", "--out": str(tmp_path)}
    words = [part for pair in flags.items() for part in pair]
    command += ["-m", "equipool", "sweep", "median", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    for seed in (0, 1):
        record = read_record(tmp_path / f"sum-embedding-4-seed-{seed}" / "record.json")
        assert (record.complete, record.hardware["processes"]) == (True, 2)


def test_finished_runs_are_found_by_their_settings(equipool, tiny, tmp_path):
    """Under another name, too; a run of other settings is refused before anything is trained."""
    equipool("sweep", "median", tiny, "--out", tmp_path)
    flags = tiny | {"--seed": "0,1", "--width": "6", "--out": tmp_path}
    done = equipool("sweep", "median", flags, status=2)
    assert "task.width: 4 in the run, 6 here" in done.stderr
    solvers = "nesterov,nesterov:momentum=0.5,learning_rate=0.1"
    done = equipool("sweep", "median", tiny, "--solver", solvers, "--out", tmp_path)
    assert "1 finished, 1 to train" in done.output
    other = "equilibrium-embedding-4-solver-nesterov-learning_rate-0.1-momentum-0.5-seed-0"
    assert {path.name for path in tmp_path.iterdir()} == {"equilibrium-embedding-4-seed-0", other}


def test_one_failure_does_not_cost_the_others(equipool, tiny, tmp_path, monkeypatch):
    train = training.train

    def failing(task, config, out, *arguments, **options):
        if task.aggregation == "sum":
            raise RuntimeError("out of memory")
        return train(task, config, out, *arguments, **options)

    monkeypatch.setattr(training, "train", failing)
    done = equipool("sweep", "median", tiny | AXES, "--out", tmp_path, status=1)
    assert "sum-embedding-4-seed-0 failed, RuntimeError: out of memory" in done.output
    assert "2 runs failed" in done.stderr
    finished = {name for name, found in events(tmp_path).items() if "finish" in found}
    assert finished == {"max-embedding-4-seed-0", "max-embedding-4-seed-1"}


def test_a_full_disk_ends_the_sweep(equipool, tiny, tmp_path, monkeypatch):
    full = Mock(side_effect=StorageError(28, "could not write model.safetensors: No space left"))
    monkeypatch.setattr(training, "train", full)
    done = equipool("sweep", "median", tiny | AXES, "--out", tmp_path, status=1)
    assert "could not write model.safetensors" in done.stderr
    full.assert_called_once()


def test_a_preset_brings_its_methods_and_flags_change_it(equipool, tiny, tmp_path, monkeypatch):
    axes = {"aggregation": ("sum", "max"), "seed": (0, 1)}
    preset = Preset("for tests", {"embedding": 8}, axes)
    monkeypatch.setitem(EXPERIMENTS["median"].presets, "quick", preset)
    monkeypatch.chdir(tmp_path)
    del tiny["--embedding"]
    equipool("sweep", "median", tiny, "--seed", 5, "--preset", "quick")
    names = {path.name for path in (tmp_path / "runs" / "median-quick").iterdir()}
    assert names == {"sum-embedding-8-seed-5", "max-embedding-8-seed-5"}
