"""Random numbers that depend on the run's seed and the step alone."""

from __future__ import annotations

import torch

_MASK = (1 << 64) - 1


def mixed(seed: int, step: int, rank: int) -> int:
    """A number of 63 bits in which those three are mixed (the finaliser of SplitMix64, thrice)."""
    value = 0
    for part in (seed, step, rank):
        value = (value + part + 0x9E3779B97F4A7C15) & _MASK
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        value ^= value >> 31
    return value >> 1


class StepRandomness:
    """Seeds torch's default generators before each step.

    So dropout and the like are functions of the seed, the step and the process. There is no state
    to be kept in a checkpoint, and runs that take turns do not disturb each other. On a GPU the
    generator is given a state of the run's own: a CUDA graph reads its seed from the state that it
    was recorded with, and graphs that run at the same time must not share one.
    """

    def __init__(self, seed: int, rank: int, device: torch.device) -> None:
        self.seed, self.rank = seed, rank
        self._generator: torch.Generator | None = None
        if device.type == "cuda":
            self._generator = torch.cuda.default_generators[device.index or 0]
            self._state = self._generator.clone_state()

    def __call__(self, step: int) -> None:
        value = mixed(self.seed, step, self.rank)
        torch.default_generator.manual_seed(value)
        if self._generator is not None:
            self._generator.graphsafe_set_state(self._state)
            self._generator.manual_seed(value)
