"""Runs of the toy, and what is left of a run, to be compared."""

import torch
from toy import Toy, config

from equipool.training import train
from equipool.training.progress import Progress
from finished_runs import last_tensors, numbers

__all__ = ["Heard", "assert_same_tensors", "last_tensors", "numbers", "run"]


def assert_same_tensors(folder, other):
    """The last checkpoints are the same, to the last bit."""
    first, second = last_tensors(folder), last_tensors(other)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


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
