"""What the loop refuses: directories, configs, data and tasks."""

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest
from runs import run
from toy import Fed, Toy, config

from equipool.training import (
    ConfigMismatchError,
    Loss,
    StorageError,
    evaluate,
    load_network,
)
from equipool.training.devices import resolve_device
from equipool.training.progress import LogFile


def test_one_process_at_a_time_trains_in_a_directory(tmp_path):
    @dataclass(frozen=True)
    class Twice(Toy):
        name: ClassVar[str] = "toy that is trained twice"

        def evaluate(self, network, device):
            message = f"another process is training in {tmp_path / 'run'}"
            with pytest.raises(BlockingIOError, match=message):
                run(tmp_path, Toy(), resume=True)
            return super().evaluate(network, device)

    run(tmp_path, Twice())
    run(tmp_path, Twice(), resume=True)  # and let go of


def test_the_lock_is_let_go_of_where_a_run_fails(tmp_path):
    with pytest.raises(ValueError, match="expected 'accuracy'"):
        run(tmp_path, Odd())
    with pytest.raises(ValueError, match="expected 'accuracy'"):
        run(tmp_path, Odd(), resume=True)


@pytest.mark.parametrize("kept", ["checkpoints", "log.jsonl", "record.json"])
@pytest.mark.parametrize("resume", [False, True])
def test_what_is_left_of_a_run_without_its_config_is_not_taken_over(tmp_path, kept, resume):
    folder = run(tmp_path)
    for path in list(folder.iterdir()):
        if path.name != kept:
            path.rename(tmp_path / path.name)
    with pytest.raises(FileExistsError, match=f"has {kept} but no config.json"):
        run(tmp_path, Toy(seed=1), resume=resume)
    assert not (folder / "config.json").exists()


def test_another_config_is_refused_and_the_difference_shown(tmp_path):
    folder = run(tmp_path)
    with pytest.raises(ConfigMismatchError) as raised:
        run(tmp_path, Toy(seed=5), config(steps=40, keep_last=7), resume=True)
    lines = str(raised.value).splitlines()
    assert str(folder) in lines[0]
    assert [line.strip() for line in lines[1:]] == [
        "task.seed: 0 in the run, 5 here",
        "training.steps: 20 in the run, 40 here, and its cosine schedule depends on the number of "
        "steps: start a new run",
    ]


def test_a_field_newer_than_the_run_counts_as_its_default(tmp_path):
    folder = run(tmp_path, training=config(steps=10, beta2=0.9))
    saved = json.loads((folder / "config.json").read_text())
    del saved["fields"]["seed"], saved["training"]["weight_decay"], saved["sha256"]
    (folder / "config.json").write_text(json.dumps(saved))
    run(tmp_path, training=config(steps=10, beta2=0.9), resume=True)
    with pytest.raises(ConfigMismatchError) as raised:
        run(tmp_path, Toy(seed=5), config(steps=10, beta2=0.9, weight_decay=0.1), resume=True)
    assert [line.strip() for line in str(raised.value).splitlines()[1:]] == [
        "task.seed: 0 in the run, 5 here",
        "training.weight_decay: 0.0 in the run, 0.1 here",
    ]


def test_a_full_disk_ends_the_run_with_the_files_name(tmp_path, monkeypatch):
    def fail(self):
        raise StorageError(28, "could not write log.jsonl: No space left on device", "log.jsonl")

    monkeypatch.setattr(LogFile, "sync", fail)
    with pytest.raises(StorageError, match=r"log\.jsonl"):
        run(tmp_path)


def test_what_cannot_be_is_said(tmp_path):
    with pytest.raises(ValueError, match=r"capture is True, expected None or False"):
        run(tmp_path, training=config(capture=True), name="capture")
    with pytest.raises(ValueError, match=r"device is 'meta', expected"):
        resolve_device("meta")
    with pytest.raises(FileNotFoundError, match="holds no run"):
        load_network(tmp_path / "nowhere")


@dataclass(frozen=True)
class Odd(Toy):
    name: ClassVar[str] = "odd toy"
    monitor: ClassVar[str] = "accuracy"
    wrong: str = "monitor"

    def batches(self, first_step, num_steps, device, shard):
        extra = int(self.wrong == "chunk")
        return super().batches(first_step, num_steps + extra, device, shard)

    def loss(self, network, batch):
        found = super().loss(network, batch)
        if self.wrong == "shape":
            return Loss(found.value[None])
        return Loss(found.value, {"loss": found.value} if self.wrong == "clash" else {})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("monitor", r"Odd.evaluate gave \['error'\], expected 'accuracy'"),
        ("chunk", r"Odd.batches gave 'x' of shape \(5, 4, 3, 1\), expected 4 first"),
        ("shape", r"the loss's 'value' has shape \(1,\), expected a scalar"),
        ("clash", "a metric is called 'loss'"),
    ],
)
def test_a_task_that_breaks_its_promise_is_told(tmp_path, wrong, message):
    with pytest.raises(ValueError, match=message):
        run(tmp_path, Odd(wrong=wrong))


def test_a_run_whose_data_has_changed_is_neither_gone_on_with_nor_evaluated(tmp_path, monkeypatch):
    folder = run(tmp_path, Fed())
    before = evaluate(folder, device="cpu")
    run(tmp_path, Fed(), resume=True)
    monkeypatch.setattr(Fed, "rows", 4)
    changed = "data.rows: 3 in the run, 4 here"
    with pytest.raises(ConfigMismatchError, match=changed):
        run(tmp_path, Fed(), resume=True)
    with pytest.raises(ConfigMismatchError, match=f"not what .* was trained on:\n  {changed}"):
        evaluate(folder, device="cpu")
    with pytest.raises(ConfigMismatchError, match=changed):
        load_network(folder)
    monkeypatch.setattr(Fed, "rows", 3)
    assert evaluate(folder, device="cpu") == before
