"""Runs of the task on molecules, and what is left of them."""

import torch

from equipool.training import read_log, train
from equipool.training.checkpoint import Checkpoints
from equipool.training.progress import Progress

CLOCK = {"seconds", "training_seconds", "steps_per_second"}


class Silent(Progress):
    """Shows nothing."""

    def begin(self, run, step, steps): ...

    def advance(self, run, step): ...

    def report(self, run, step, steps, numbers): ...

    def message(self, text): ...

    def close(self): ...


def run(task, training, folder, device="cpu", **more):
    return train(task, training, folder, device=device, progress=Silent(), **more)


def tensors(folder):
    """All tensors of the last checkpoint, by file and name."""
    found = Checkpoints(folder).newest(print)
    return {
        f"{file}/{name}": value
        for file, content in found.tensors.items()
        for name, value in content.items()
    }


def numbers(folder):
    """The log's points and evaluations, without what a clock was read for."""
    entries = [e for e in read_log(folder / "log.jsonl") if e.get("event") in (None, "evaluation")]
    return [{key: value for key, value in e.items() if key not in CLOCK} for e in entries]


def assert_same(folder, other):
    """Weights, moments and logs are the same, to the last bit."""
    first, second = tensors(folder), tensors(other)
    assert len(first) > 20
    torch.testing.assert_close(first, second, rtol=0, atol=0, equal_nan=True)
    assert numbers(folder) == numbers(other)
