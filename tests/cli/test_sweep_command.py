import os
import shlex
import signal
import subprocess
import sys

import pytest
import torch.distributed as dist

from equipool import training
from equipool.cli import sweep
from equipool.cli.console import report_line
from equipool.experiments.presets import EXPERIMENTS, Preset
from equipool.experiments.registry import MedianTask
from equipool.report import best_groups, markdown, read_runs, summarize
from equipool.training import Plan, StorageError, TrainingConfig, read_record

AXES = {"--aggregation": "sum,max", "--seed": "0,1"}


def events(folder):
    """What happened in each run."""
    return {
        log.parent.name: [
            word for word in ("start", "resume", "finish") for _ in range(
                log.read_text().count(f'"event": "{word}"')
            )
        ]
        for log in folder.glob("*/log.jsonl")
    }  # fmt: skip


def test_every_combination_is_trained_once(equipool, tiny, tmp_path):
    done = equipool("sweep", "median", tiny | AXES, "--out", tmp_path)
    assert "4 runs" in done.output
    assert "0 finished, 0 to resume, 4 to start" in done.output
    names = {f"{a}-embedding-4-seed-{s}" for a in ("sum", "max") for s in (0, 1)}
    assert {path.name for path in tmp_path.iterdir()} == names
    for name in names:
        fields = read_record(tmp_path / name / "record.json").config["fields"]
        assert name == f"{fields['aggregation']}-embedding-4-seed-{fields['seed']}"
    before = events(tmp_path)

    # once more, with a further seed, and what is done is left alone
    flags = tiny | AXES | {"--seed": "0,1,2", "--aggregation": "max,sum"}
    again = equipool("sweep", "median", flags, "--out", tmp_path)
    assert "4 finished, 0 to resume, 2 to start" in again.output
    assert "[1/2] max-embedding-4-seed-2" in again.output
    after = events(tmp_path)
    assert {name: after[name] for name in before} == before
    assert len(after) == 6
    runs = read_runs([tmp_path])
    assert all(line in again.output for line in best_groups(runs))
    for cell in summarize(runs).rows[0]:
        assert cell in again.output


def test_a_sweep_that_was_stopped_goes_on(equipool, tiny, tmp_path, stop_at):
    stop_at(29)
    stopped = equipool("sweep", "median", tiny | AXES, "--out", tmp_path, status=3)
    # each run asks after 19 steps and at its end
    assert "interrupted at step 8 of 20" in stopped.output
    assert "1 of 4 runs are finished. To resume: equipool sweep median" in stopped.output
    told = stopped.output.splitlines()[-1].partition("To resume: equipool ")[2]
    done = equipool(*shlex.split(told))
    assert "1 finished, 1 to resume, 2 to start" in done.output
    happened = events(tmp_path)
    assert happened["sum-embedding-4-seed-0"] == ["start", "finish"]
    assert happened["sum-embedding-4-seed-1"] == ["start", "resume", "finish"]
    assert happened["max-embedding-4-seed-1"] == ["start", "finish"]
    assert len(happened) == 4


def test_runs_together_are_those_alone(equipool, tiny, tmp_path):
    flags = tiny | {"--aggregation": "sum,max,mean"}
    equipool("sweep", "median", flags, "--out", tmp_path / "alone")
    equipool("sweep", "median", flags, "--out", tmp_path / "both", "--together", 2)
    for name, together in (("sum", 2), ("max", 2), ("mean", 1)):
        file = f"{name}-embedding-4-seed-0/record.json"
        alone, both = read_record(tmp_path / "alone" / file), read_record(tmp_path / "both" / file)
        assert both.metrics == alone.metrics
        assert (alone.together, both.together) == (1, together)


def test_a_limit_of_time_holds_for_all_runs(equipool, tiny, tmp_path):
    flags = tiny | AXES | {"--out": tmp_path, "--max-seconds": "1e-6"}
    done = equipool("sweep", "median", flags, status=3)
    assert "Stopping before the next run: time limit reached. To resume:" in done.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_last_evaluation_of_a_run_ends_the_sweep(
    equipool, tiny, tmp_path, monkeypatch, number
):
    evaluate, evaluations = MedianTask.evaluate, []

    def evaluate_and_signal(self, *arguments):
        evaluations.append(self.seed)
        if len(evaluations) == 2:  # at the end of the first run
            os.kill(os.getpid(), number)
        return evaluate(self, *arguments)

    monkeypatch.setattr(MedianTask, "evaluate", evaluate_and_signal)
    handler = signal.getsignal(number)
    done = equipool("sweep", "median", tiny | AXES, "--out", tmp_path, status=3)
    assert signal.getsignal(number) == handler
    assert "1 of 4 runs are finished. To resume: equipool sweep median" in done.output
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


def test_a_run_of_another_config_is_refused_before_anything_is_trained(equipool, tiny, tmp_path):
    equipool("sweep", "median", tiny, "--seed", 1, "--out", tmp_path)
    done = equipool(
        "sweep", "median", tiny | {"--seed": "0,1", "--width": "6", "--out": tmp_path}, status=2
    )
    assert "task.width: 4 in the run, 6 here" in done.stderr
    assert len(list(tmp_path.iterdir())) == 1


def test_a_run_of_the_same_config_is_found_under_another_name(equipool, tiny, tmp_path):
    """Its name did not tell the width, which is now among what is gone through."""
    equipool("sweep", "median", tiny, "--out", tmp_path)
    done = equipool("sweep", "median", tiny | {"--width": "4,5", "--out": tmp_path})
    assert "1 finished, 0 to resume, 1 to start" in done.output
    names = {"equilibrium-embedding-4-seed-0", "equilibrium-embedding-4-width-5-seed-0"}
    assert {path.name for path in tmp_path.iterdir()} == names


@pytest.mark.parametrize("started", [False, True])
def test_one_failure_does_not_cost_the_others(equipool, tiny, tmp_path, monkeypatch, started):
    train_together = training.train_together

    def failing(plans, **arguments):
        if plans[0].task.aggregation == "sum":
            if started:
                train_together(plans, **arguments | {"stop_after": 0})
            raise RuntimeError("out of memory")
        return train_together(plans, **arguments)

    monkeypatch.setattr(training, "train_together", failing)
    done = equipool("sweep", "median", tiny | AXES, "--out", tmp_path, status=1)
    assert "sum-embedding-4-seed-0 failed, RuntimeError: out of memory" in done.output
    told = "2 runs failed; to see why: equipool train median --out"
    reasons = "2 runs could not be started, for the reasons above"
    assert (told if started else reasons) in done.stderr
    others = {"max-embedding-4-seed-0", "max-embedding-4-seed-1"}
    assert {name for name in events(tmp_path) if name.startswith("max")} == others


def test_a_full_disk_ends_the_sweep(equipool, tiny, tmp_path, monkeypatch):
    calls = []

    def full(plans, **arguments):
        calls.append(plans)
        raise StorageError(28, "could not write model.safetensors: No space left")

    monkeypatch.setattr(training, "train_together", full)
    done = equipool("sweep", "median", tiny | AXES, "--out", tmp_path, status=1)
    assert "could not write model.safetensors" in done.stderr
    assert len(calls) == 1


def test_ctrl_c_between_runs_says_how_to_go_on(equipool, tiny, tmp_path, monkeypatch):
    def interrupted(plans, **arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "train_together", interrupted)
    done = equipool("sweep", "median", tiny | AXES, "--out", tmp_path, status=3)
    assert "Interrupted. To resume: equipool sweep median" in done.output


def test_a_preset_brings_its_methods_and_flags_change_it(equipool, tiny, tmp_path, monkeypatch):
    axes = {"aggregation": ("sum", "attention", "equilibrium"), "seed": (0, 1)}
    preset = Preset("for tests", "quick", {"steps": 4, "evaluate_every": 2}, axes)
    monkeypatch.setitem(EXPERIMENTS["median"].presets, "tiny", preset)
    monkeypatch.chdir(tmp_path)
    names = ("--embedding", "--batch-size", "--set-size", "--width", "--evaluation-sets")
    flags = {name: tiny[name] for name in names} | {"--seed": 5, "--device": "cpu"}
    done = equipool("sweep", "median", flags, "--preset", "tiny")
    folder = tmp_path / "runs" / "median-tiny"
    runs = read_runs([folder])
    assert {run.config["fields"]["aggregation"] for run in runs} == set(preset.axes["aggregation"])
    assert {run.config["fields"]["seed"] for run in runs} == {5}
    assert {run.steps for run in runs} == {4}
    assert "Best mse at embedding 4: " in done.output


def test_a_page_of_a_sweep(equipool, tiny, tmp_path):
    equipool("sweep", "median", tiny | AXES, "--out", tmp_path / "runs")
    page = tmp_path / "pages" / "page.html"
    equipool("report", tmp_path / "runs", "--out", page)
    runs = read_runs([tmp_path / "runs"])
    assert len(markdown(summarize(runs)).splitlines()) == 4
    for row in summarize(runs).rows:
        for cell in row:
            assert f"<td>{cell}</td>" in page.read_text()
    missing = equipool("report", tmp_path / "nothing", status=1)
    assert missing.stderr == f"Error: {tmp_path / 'nothing'} does not exist\n"


def test_runs_of_different_precision_are_not_trained_together():
    waiting = [
        Plan(MedianTask(), TrainingConfig(steps=1, precision=precision), "run")
        for precision in ("32-true",) * 3 + ("64-true",) * 2
    ]
    found = [[plan.config.precision for plan in group] for group in sweep.groups(waiting, 2)]
    assert found == [["32-true"] * 2, ["32-true"], ["64-true"] * 2]


def test_only_one_process_speaks(monkeypatch, capsys):
    for rank, expected in (("0", "done\n"), ("1", "")):
        monkeypatch.setenv("RANK", rank)
        report_line("done")
        assert capsys.readouterr().out == expected
