import json
import subprocess
import sys

import pytest

from equipool import extras
from equipool.experiments.registry import MedianTask
from equipool.training import Loss, read_record
from equipool.training.config import differences
from finished_runs import assert_same_run, numbers


def test_flags_reach_the_run_and_its_record(equipool, tiny, tmp_path):
    out, record = tmp_path / "run", tmp_path / "records" / "sum.json"
    flags = tiny | {"--aggregation": "sum", "--seed": "3", "--learning-rate": "0.01",
                    "--clip-norm": "none", "--record": record, "--out": out}  # fmt: skip
    done = equipool("train", "median", flags)
    written = read_record(record)
    assert written == read_record(out / "record.json")
    assert written.config["fields"]["aggregation"] == "sum"
    assert written.config["fields"]["seed"] == written.seed == 3
    assert written.config["training"]["learning_rate"] == 0.01
    assert written.config["training"]["clip_norm"] is None
    assert (written.steps, written.complete) == (20, True)
    assert f"{written.metrics['mse']:.6g}" in done.output
    assert str(record) in done.output
    assert f"To train longer: equipool train median --out {out} --resume --steps 40" in done.output


def test_a_run_that_was_stopped_goes_on_with_the_command_that_is_told(
    equipool, tiny, tmp_path, stop_at
):
    whole, broken = tmp_path / "whole", tmp_path / "in two pieces"
    equipool("train", "median", tiny, "--out", whole)
    stop_at(7)
    stopped = equipool("train", "median", tiny, "--out", broken, status=3)
    assert not (broken / "record.json").exists()
    how = f"equipool train median --out '{broken}' --resume --device cpu"
    assert f"interrupted at step 7 of 20 and saved. To resume: {how}" in stopped.output

    done = equipool("train", "median", "--out", broken, "--resume", "--device", "cpu")
    assert "from step 7 to 20" in done.output
    assert_same_run(broken, whole)
    configs = [json.loads((run / "config.json").read_text()) for run in (whole, broken)]
    assert differences(*configs) == []


def test_a_limit_of_time_stops_and_saves(equipool, tiny, tmp_path):
    flags = tiny | {"--out": tmp_path / "run", "--max-seconds": "1e-9"}
    done = equipool("train", "median", flags, status=3)
    assert "time limit reached at step 1 of 20" in done.output
    equipool("train", "median", tiny, "--out", tmp_path / "run", "--resume")
    equipool("train", "median", flags | {"--max-seconds": "0"}, status=2)


def test_another_config_is_refused_with_the_difference(equipool, tiny, tmp_path):
    out = tmp_path / "run"
    equipool("train", "median", tiny, "--out", out)
    again = equipool("train", "median", tiny, "--out", out, status=1)
    assert "already holds a run" in again.stderr
    other = equipool(
        "train", "median", "--out", out, "--resume", "--width", 6, "--seed", 1, status=1
    )
    assert "task.width: 4 in the run, 6 here" in other.stderr
    assert "task.seed: 0 in the run, 1 here" in other.stderr
    assert "Traceback" not in other.output
    preset = equipool("train", "median", "--out", out, "--resume", "--preset", "quick", status=1)
    assert "task.width: 4 in the run, 64 here" in preset.stderr


def test_what_changes_no_number_may_change(equipool, tiny, tmp_path, stop_at):
    stop_at(7)
    equipool("train", "median", tiny, "--out", tmp_path / "run", status=3)
    equipool("train", "median", "--out", tmp_path / "run", "--resume",
                    "--checkpoint-every", 3)  # fmt: skip
    assert (tmp_path / "run" / "checkpoints" / "step-00000018").exists()


def test_a_run_without_a_directory_gets_one(equipool, tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    equipool("train", "median", tiny, "--aggregation", "max")
    assert (tmp_path / "runs" / "median" / "max-embedding-4-seed-0" / "record.json").exists()


def test_a_start_that_fails_does_not_claim_the_directory(equipool, refused, tiny, tmp_path):
    flags = tiny | {"--out": tmp_path / "run"}
    refused(("train", "median", flags | {"--solver.learning-rate": "-1"}))
    equipool("train", "median", flags)


@pytest.mark.parametrize("config", ["[]", "{}", '{"task": "median", "fields": [], "training": {}}'])
def test_a_config_that_is_none_is_said_in_a_line(equipool, refused, tiny, tmp_path, config):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(config)
    for words in (
        ("train", "median", tiny, "--out", tmp_path / "run", "--resume"),
        ("evaluate", tmp_path / "run"),
        ("report", tmp_path / "run"),
        ("sweep", "median", tiny, "--out", tmp_path),
    ):
        refused(words, "config.json is not the config of a run: expected task, fields")


def test_a_damaged_best_checkpoint_suggests_the_last(equipool, refused, tiny, tmp_path):
    out = tmp_path / "run"
    equipool("train", "median", tiny, "--out", out)
    (out / "best.json").write_text("{}")
    damaged = "best.json is damaged: it does not name the step"
    refused(("evaluate", out), damaged, "--which last")


def test_a_missing_extra_says_what_to_install(equipool, refused, tiny, tmp_path, monkeypatch):
    absent = ("lightning", "safetensors")
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name in absent else object())
    for command in (("train", "median", tiny, "--out", tmp_path / "run"),
                    ("sweep", "median", tiny, "--out", tmp_path / "runs"),
                    ("evaluate", tmp_path)):  # fmt: skip
        how = 'needs lightning and safetensors. Run: pip install "equipool[train]"'
        refused(command, how)
    assert not list(tmp_path.iterdir())


def test_evaluation_is_that_of_the_run(equipool, tiny, tmp_path):
    out = tmp_path / "run"
    equipool("train", "median", tiny, "--out", out)
    record = read_record(out / "record.json")
    for which, expected in (("best", record.best["metrics"]), ("last", record.metrics)):
        done = equipool("evaluate", out, "--which", which, "--device", "cpu")
        stored = json.loads((out / f"evaluation-{which}.json").read_text())
        assert stored["metrics"] == pytest.approx(expected)
        assert f"{stored['metrics']['mse']:.6g}" in done.output
    assert stored["step"] == 20


def test_a_recipe_is_overridden_by_flags_and_resumed_without(
    equipool, tiny, tmp_path, stop_at, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    stop_at(7)
    words = ("--recipe", "converging", "--solver.momentum", "0.25")
    done = equipool("train", "median", tiny, *words, status=3)
    (out,) = (tmp_path / "runs" / "median-converging").iterdir()
    assert "--recipe" not in done.output.partition("To resume:")[2]
    equipool("train", "median", "--out", out, "--resume", "--device", "cpu")
    config = json.loads((out / "config.json").read_text())
    fields = config["fields"]
    assert (fields["inner_steps"], fields["solver.momentum"]) == (2, 0.25)
    assert (fields["solver.max_step"], fields["differentiation.num_steps"]) == (0.5, 5)
    assert config["training"]["aux_weight"] == 1e-3
    done = equipool("train", "median", tiny, "--recipe", "slow", status=2)
    assert "--recipe is 'slow', expected one of converging" in done.stderr


def test_metrics_over_the_inner_steps(equipool, tiny, tmp_path):
    out, page = tmp_path / "run", tmp_path / "page.html"
    steps = {"--inner-steps": "random", "--inner-steps.least": "1", "--inner-steps.most": "4"}
    equipool("train", "median", tiny | steps, "--out", out)
    words = ("--over-steps", "8,4, 1", "--starts", 2, "--which", "last", "--device", "cpu")
    done = equipool("evaluate", out, *words)
    rows = json.loads((out / "over-steps-last.json").read_text())["over_steps"]
    assert [row["num_steps"] for row in rows] == [1, 4, 8]
    assert rows[1]["metrics"] == pytest.approx(read_record(out / "record.json").metrics)
    assert f"{rows[2]['metrics']['mse']:,.4g}" in done.output
    assert all(row["spread"] > 0 for row in rows)
    equipool("report", out, "--out", page)
    assert "Inner steps in evaluation" in page.read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--over-steps", "1,x"), "--over-steps is '1,x', expected whole numbers such as 1,10,100"),
        (("--starts", "3"), "--starts is 3, expected 2 or more, with --over-steps"),
        (("--over-steps", "3", "--starts", "1"), "--starts is 1, expected 2 or more"),
        (("--over-steps", "3", "--device", "cpu"), "has no equilibrium layer"),
    ],
)
def test_inner_steps_that_cannot_be_evaluated(equipool, tiny, tmp_path, words, message):
    equipool("train", "median", tiny, "--aggregation", "sum", "--out", tmp_path / "run")
    done = equipool("evaluate", tmp_path / "run", *words, status=1)
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


PARTS = {
    "--solver": "newton", "--solver.damping": "0.1", "--inner-steps": "to-tolerance",
    "--inner-steps.max-steps": "3", "--differentiation": "implicit",
    "--differentiation.linear-solver": "cholesky", "--start": "learned", "--start.value": "0.5",
}  # fmt: skip


def test_parts_are_saved_resumed_evaluated_and_reported(equipool, tiny, tmp_path, stop_at):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    equipool("train", "median", tiny | PARTS, "--out", whole)
    stop_at(7)
    equipool("train", "median", tiny | PARTS, "--out", broken, status=3)
    equipool("train", "median", "--out", broken, "--resume", "--device", "cpu")
    assert numbers(broken) == numbers(whole)
    fields = json.loads((broken / "config.json").read_text())["fields"]
    for option, value in PARTS.items():
        assert str(fields[option[2:].replace("-", "_")]) in (value, value.replace("-", "_"))
    other = equipool(
        "train", "median", "--out", broken, "--resume", "--solver.damping", 0.2, status=1
    )
    assert "task.solver.damping: 0.1 in the run, 0.2 here" in other.stderr
    equipool("evaluate", broken, "--device", "cpu")
    third, flags = tmp_path / "third", tiny | PARTS | {"--solver.damping": "0.2"}
    equipool("train", "median", flags, "--out", third)
    equipool("report", whole, third, "--out", tmp_path / "page.html")
    assert "solver.damping" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("place", ["file/record.json", "folder"])
def test_a_record_that_cannot_be_written_is_noticed_before_training(refused, tiny, tmp_path, place):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    out = tmp_path / "run"
    words = ("train", "median", tiny, "--out", out, "--record", tmp_path / place)
    refused(words, str(tmp_path / place))
    assert not out.exists()


def test_a_run_that_learned_nothing_fails(equipool, tiny, tmp_path, monkeypatch):
    loss = MedianTask.loss

    def not_a_number(self, network, batch):
        found = loss(self, network, batch)
        return Loss(found.value * float("nan"), found.metrics)

    monkeypatch.setattr(MedianTask, "loss", not_a_number)
    done = equipool("train", "median", tiny, "--out", tmp_path / "run", status=1)
    assert "the run failed" in done.stderr


def test_the_module_runs_as_a_program():
    command = [sys.executable, "-m", "equipool", "train", "median", "--sed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: No such option: --sed")
    assert len(done.stderr.splitlines()) == 1
