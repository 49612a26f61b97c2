"""The learning rate as a function of the step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

Shape = Callable[[float], float]

COOLDOWN = 0.2  # share of the steps in which `trapezoid` falls


def constant(progress: float) -> float:
    return 1.0


def cosine(progress: float) -> float:
    """Half a cosine, from 1 to 0."""
    return 0.5 * (1 + math.cos(math.pi * progress))


def linear(progress: float) -> float:
    """A straight line from 1 to 0."""
    return 1 - progress


def trapezoid(progress: float) -> float:
    """1, then a straight line to 0 in the last fifth."""
    return min(1.0, (1 - progress) / COOLDOWN)


#: What follows the warm-up, by name: functions of the progress from 0 to 1.
SHAPES: dict[str, Shape] = {
    "constant": constant,
    "cosine": cosine,
    "linear": linear,
    "trapezoid": trapezoid,
}


@dataclass(frozen=True)
class Schedule:
    r"""The factor of the learning rate at a step $s = 0, 1, \dots$ of $S$, with $W$ steps of
    warm-up:

    $$f(s) = \frac{s + 1}{W} \;\text{ for } s < W, \qquad
      f(s) = m + (1 - m) \, \mathrm{shape}\left(\frac{s - W}{S - W}\right) \;\text{ else}.$$

    A pure function of the step, so that it needs no state.

    Args:
        shape: the name of a shape, see `SHAPES`.
        steps: $S$.
        warmup_steps: $W$.
        final: $m$, what is left at the end.

    Example:
        >>> schedule = Schedule("linear", steps=6, warmup_steps=2)
        >>> [schedule(step) for step in range(6)]
        [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """

    shape: str
    steps: int
    warmup_steps: int = 0
    final: float = 0.0

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise ValueError(f"schedule is {self.shape!r}, expected one of {sorted(SHAPES)}")

    def __call__(self, step: int) -> float:
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        progress = (step - self.warmup_steps) / max(self.steps - self.warmup_steps, 1)
        return self.final + (1 - self.final) * SHAPES[self.shape](min(progress, 1.0))
