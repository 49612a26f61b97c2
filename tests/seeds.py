"""Other random numbers for the same tests."""

import os

import torch


def shift_seeds():
    """Shift the seeds that this process sets by `EQUIPOOL_TEST_SEED`. Call it once, and first in
    each process that a test starts: it must draw what the test draws."""
    shift = int(os.environ.get("EQUIPOOL_TEST_SEED", 0))
    original = torch.manual_seed
    torch.manual_seed = lambda seed: original((seed + 7919 * shift) % 2**63)
