"""How deep the layers with random steps search in a training step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from equipool import EquilibriumAggregation, Fixed, RandomSteps
from equipool.training.devices import mixed

Depths = tuple[int, ...]  # number of steps of each layer that draws it

ANY_RANK = -1  # no process has it: what is drawn is the same in all of them


class DepthDraw:
    """Draws the number of inner steps for a network, once per training step.

    The draw is a function of seed and step, so that resuming is exact and all processes agree. All
    layers use the same one: a captured step needs a graph per combination, and there are few.
    """

    def __init__(self, network: nn.Module, seed: int) -> None:
        layers = (m for m in network.modules() if isinstance(m, EquilibriumAggregation))
        self._drawn = [(m, m.steps) for m in layers if isinstance(m.steps, RandomSteps)]
        self._seed = seed
        self._sides = math.lcm(*(len(steps.choices) for _, steps in self._drawn))

    def __call__(self, step: int) -> Depths:
        """The depths of a training step."""
        return self._depths(mixed(self._seed, step, ANY_RANK) % self._sides)

    def all(self) -> list[Depths]:
        """All depths that can be drawn, the deepest first."""
        return sorted({self._depths(side) for side in range(self._sides)}, reverse=True)

    def _depths(self, side: int) -> Depths:
        choices = (steps.choices for _, steps in self._drawn)
        return tuple(numbers[side * len(numbers) // self._sides] for numbers in choices)

    @contextmanager
    def set_to(self, depths: Depths) -> Iterator[None]:
        """The layers search this deep inside the block."""
        try:
            for (layer, steps), depth in zip(self._drawn, depths, strict=True):
                layer.steps = Fixed(depth, steps.tolerance)
            yield
        finally:
            for layer, steps in self._drawn:
                layer.steps = steps
