"""Runs of the toy, and what is left of a run, to be compared."""

import torch
from toy import Toy, config

from equipool.training import read_log, train
from equipool.training.checkpoint import Checkpoints
from equipool.training.progress import Progress

CLOCK = {"seconds", "training_seconds", "steps_per_second"}


def last_tensors(folder):
    """All tensors of the last checkpoint, by file and name."""
    found = Checkpoints(folder).newest(print)
    return {
        f"{file}/{name}": value
        for file, tensors in found.tensors.items()
        for name, value in tensors.items()
    }


def assert_same_tensors(folder, other):
    """The last checkpoints are the same, to the last bit."""
    first, second = last_tensors(folder), last_tensors(other)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def numbers(folder):
    """The log's points and evaluations, without what a clock was read for."""
    entries = [e for e in read_log(folder / "log.jsonl") if e.get("event") in (None, "evaluation")]
    return [{key: value for key, value in e.items() if key not in CLOCK} for e in entries]


class Heard(Progress):
    """Keeps what is said."""

    def __init__(self):
        self.texts = []

    def begin(self, run, step, steps):
        self.texts.append(f"begin {step} {steps}")

    def message(self, text):
        self.texts.append(text)

    def __contains__(self, part):
        return any(part in text for text in self.texts)


def run(tmp_path, task=None, training=None, name="run", **more):
    """Train quietly; the directory."""
    more = {"device": "cpu", "progress": Heard()} | more
    train(task or Toy(), training or config(), tmp_path / name, **more)
    return tmp_path / name
