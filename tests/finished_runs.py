"""What runs leave behind, to be compared."""

import torch

from equipool.training import RunFolder, read_log

CLOCK = {"seconds", "training_seconds", "steps_per_second"}


def last_tensors(folder):
    """All tensors of the last checkpoint, by name, such as `model/head.weight`."""
    return RunFolder(folder).newest().tensors


def numbers(folder):
    """The log's points and evaluations, without what a clock was read for."""
    entries = [e for e in read_log(folder / "log.jsonl") if e.get("event") in (None, "evaluation")]
    return [{key: value for key, value in e.items() if key not in CLOCK} for e in entries]


def assert_same_tensors(folder, other):
    """The last checkpoints are the same, to the last bit."""
    first, second = last_tensors(folder), last_tensors(other)
    torch.testing.assert_close(first, second, rtol=0, atol=0, equal_nan=True)


def assert_same_run(folder, other):
    """Weights, moments and logs are the same, to the last bit."""
    assert_same_tensors(folder, other)
    assert numbers(folder) == numbers(other)
