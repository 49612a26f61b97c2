"""What the loop refuses: directories, settings, data and tasks."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
from runs import Heard, run
from toy import Toy, config

from equipool.files import FileError
from equipool.training import (
    ConfigMismatchError,
    Loss,
    load_network,
    read_record,
)
from equipool.training.devices import resolve_device


def test_one_process_at_a_time_trains_in_a_directory(tmp_path):
    @dataclass(frozen=True)
    class Twice(Toy):
        name: ClassVar[str] = "toy that is trained twice"

        def evaluate(self, network, device):
            with pytest.raises(BlockingIOError, match="another process is training in"):
                run(tmp_path, Toy(), resume=True)
            return super().evaluate(network, device)

    run(tmp_path, Twice())
    run(tmp_path, Twice(), resume=True)  # the lock is released


def test_a_run_without_its_config_is_not_taken_over(tmp_path):
    folder = run(tmp_path, stop_after=0)
    (folder / "config.json").unlink()
    with pytest.raises(FileExistsError, match="already holds a run"):
        run(tmp_path, Toy(seed=1))
    with pytest.raises(FileError, match=r"task.seed: 0 in the run, 1 here"):
        run(tmp_path, Toy(seed=1), resume=True)


def test_another_config_is_refused_and_the_difference_shown(tmp_path):
    folder = run(tmp_path)
    before = sorted(folder.rglob("*"))
    with pytest.raises(FileExistsError, match=r"already holds a run: resume it"):
        run(tmp_path)
    with pytest.raises(ConfigMismatchError) as raised:
        run(tmp_path, Toy(seed=5), config(steps=40, capture=False), resume=True)
    lines = str(raised.value).splitlines()
    assert str(folder) in lines[0]
    assert [line.strip() for line in lines[1:]] == [
        "task.seed: 0 in the run, 5 here",
        "training.steps: 20 in the run, 40 here",
    ]
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("saved", "given"),
    [({"aux_initial": 0.5}, {"aux_initial": 0.5, "steps": 40}), ({}, {"steps": 10})],
)
def test_what_cannot_be_extended_is_refused(tmp_path, saved, given):
    run(tmp_path, training=config(schedule="constant", **saved))
    with pytest.raises(ConfigMismatchError, match=r"training.steps: 20 in the run"):
        run(tmp_path, training=config(schedule="constant", **given), resume=True)


@dataclass(frozen=True)
class Odd(Toy):
    name: ClassVar[str] = "odd toy"
    monitor: ClassVar[str] = "accuracy"
    wrong: str = "monitor"

    def network(self):
        return None if self.wrong == "network" else super().network()

    def batches(self, first_step, num_steps, device, shard):
        extra = int(self.wrong == "chunk")
        return super().batches(first_step, num_steps + extra, device, shard)

    def loss(self, network, batch):
        if self.wrong == "step" and network.training:
            raise ArithmeticError("the step failed")
        found = super().loss(network, batch)
        if self.wrong == "shape":
            return Loss(found.value[None])
        return Loss(found.value, {"loss": found.value} if self.wrong == "clash" else {})


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ("network", AttributeError, "NoneType"),
        ("chunk", ValueError, r"Odd.batches gave 'x' of shape \(5, 4, 3, 1\), expected 4 first"),
        ("shape", ValueError, r"the loss's 'value' has shape \(1,\), expected a scalar"),
        ("clash", ValueError, "a metric is called 'loss'"),
        ("step", ArithmeticError, "the step failed"),
    ],
)
def test_a_start_that_fails_leaves_nothing(tmp_path, wrong, error, message):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    for name in ("run", "mine"):
        with pytest.raises(error, match=message):
            run(tmp_path, Odd(wrong=wrong), name=name)
    assert [path.name for path in tmp_path.rglob("*")] == ["mine", "notes.txt"]


def test_a_run_that_fails_later_is_kept_and_its_lock_released(tmp_path):
    for resume in (False, True):
        with pytest.raises(ValueError, match=r"gave \['error'\], expected 'accuracy'"):
            run(tmp_path, Odd(), resume=resume)
    assert (tmp_path / "run" / "config.json").exists()


def test_wrong_values_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"capture is True, expected None or False"):
        run(tmp_path, training=config(capture=True))
    with pytest.raises(ValueError, match=r"device is 'meta', expected"):
        resolve_device("meta")
    with pytest.raises(FileNotFoundError, match="holds no run"):
        load_network(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="which is 'newest', expected 'best' or 'last'"):
        load_network(run(tmp_path), "newest")


@dataclass(frozen=True)
class Hopeless(Toy):
    name: ClassVar[str] = "hopeless toy"

    def loss(self, network, batch):
        return Loss(super().loss(network, batch).value * float("nan"))


def test_a_run_of_nan_has_failed_and_warns(tmp_path, monkeypatch):
    assert not read_record(run(tmp_path, name="good") / "record.json").failed
    record = read_record(run(tmp_path, Hopeless(), name="loss") / "record.json")
    assert record.failed
    assert "20 of 20 steps were skipped" in record.warning
    monkeypatch.setattr(Toy, "evaluate", lambda *_: {"error": float("nan")})
    heard = Heard()
    record = read_record(run(tmp_path, name="metrics", progress=heard) / "record.json")
    assert record.failed
    assert f"WARNING: {record.warning}" in heard
