"""Runs that take turns are each as if alone."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
from runs import Heard, assert_same_run
from toy import Toy, config

from equipool.training import read_record, train, train_together

PLANS = (
    (Toy(kind="noisy", seed=1), config(steps=10)),
    (Toy(kind="noisy", seed=2), config(steps=7, ema_decay=None)),
    (Toy(kind="plain"), config(steps=12, chunk=7, log_every=3)),
)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folders = [tmp_path_factory.mktemp("alone") / "run" for _ in PLANS]
    for (task, training), folder in zip(PLANS, folders, strict=True):
        train(task, training, folder, device="cpu", progress=Heard())
    return folders


def together(folder, **more):
    runs = [(*plan, folder / str(place)) for place, plan in enumerate(PLANS)]
    return train_together(runs, device="cpu", progress=Heard(), **more)


def test_each_is_as_if_alone(tmp_path, alone):
    records = together(tmp_path)
    for place, folder in enumerate(alone):
        assert_same_run(folder, tmp_path / str(place))
        record = read_record(tmp_path / str(place) / "record.json")
        assert record == records[place]
        assert record.metrics == read_record(folder / "record.json").metrics
        assert record.together == 3


def test_in_pieces_as_well(tmp_path, alone):
    for _ in range(25):
        records = together(tmp_path, resume=True, stop_after=0)
        if all(record.complete for record in records):
            break
    for place, folder in enumerate(alone):
        assert_same_run(folder, tmp_path / str(place))


class FakeTime:
    """A clock that goes on only where it is told to."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


def test_seconds_of_training_have_no_evaluation_of_any_run_and_no_building(tmp_path, monkeypatch):
    clock = FakeTime()
    monkeypatch.setattr("equipool.training.devices.time", clock)

    @dataclass(frozen=True)
    class Slow(Toy):
        name: ClassVar[str] = "slow toy"

        def network(self):
            clock.now += 100_000.0
            return super().network()

        def batches(self, first_step, num_steps, device, shard):
            clock.now += 1.0 if first_step else 0.0
            return super().batches(first_step, num_steps, device, shard)

        def evaluate(self, network, device):
            clock.now += 1000.0
            return super().evaluate(network, device)

    training = config(chunk=4, log_every=4, evaluate_every=8)
    runs = [(Slow(seed=seed), training, tmp_path / str(seed)) for seed in (0, 1)]
    records = train_together(runs, device="cpu", progress=Heard())
    # both make 4 chunks after the first, and have 3 evaluations: the last one of the second run
    # comes when the first is done
    assert [record.training_seconds for record in records] == [8.0, 8.0]
    assert [record.seconds for record in records] == [5008.0, 6008.0]
    curves = [[e["training_seconds"] for e in record.curve] for record in records]
    assert curves == [[2.0, 6.0, 8.0], [2.0, 6.0, 8.0]]


def test_what_cannot_be_together_is_refused(tmp_path):
    with pytest.raises(ValueError, match="runs is empty"):
        train_together([])
    with pytest.raises(ValueError, match=r"precisions are \['32-true', '64-true'\]"):
        train_together([(Toy(), config(), "a"), (Toy(), config(precision="64-true"), "b")])
    with pytest.raises(ValueError, match="the same directory"):
        train_together([(Toy(), config(), tmp_path / "a"), (Toy(seed=1), config(), tmp_path / "a")])
