"""What the loop refuses: directories, settings, data and tasks."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
from runs import run
from toy import Toy, config

from equipool.training import ConfigMismatchError, load_network


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


def test_another_config_is_refused_and_the_difference_shown(tmp_path):
    folder = run(tmp_path)
    before = sorted(folder.rglob("*"))
    with pytest.raises(FileExistsError, match=r"already holds a run: resume it"):
        run(tmp_path)
    with pytest.raises(ConfigMismatchError) as raised:
        run(tmp_path, Toy(seed=5), config(steps=40, capture=False), resume=True)
    assert "task.seed: 0 in the run, 5 here" in str(raised.value)
    assert "training.steps: 20 in the run, 40 here" in str(raised.value)
    assert "capture" not in str(raised.value)
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

    def batches(self, first_step, num_steps, device, shard):
        extra = int(self.wrong == "chunk")
        return super().batches(first_step, num_steps + extra, device, shard)


def test_a_start_that_fails_can_be_repeated(tmp_path):
    for _ in range(2):
        with pytest.raises(ValueError, match=r"gave 'x' of shape \(5, 4, 3, 1\), expected 4 first"):
            run(tmp_path, Odd(wrong="chunk"))
    run(tmp_path)


def test_a_run_that_fails_later_is_kept_and_its_lock_released(tmp_path):
    for resume in (False, True):
        with pytest.raises(ValueError, match=r"gave \['error'\], expected 'accuracy'"):
            run(tmp_path, Odd(), resume=resume)
    assert (tmp_path / "run" / "config.json").exists()


def test_wrong_values_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"capture is True, expected None or False"):
        run(tmp_path, training=config(capture=True))
    with pytest.raises(FileNotFoundError, match="holds no run"):
        load_network(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="which is 'newest', expected 'best' or 'last'"):
        load_network(run(tmp_path), "newest")
