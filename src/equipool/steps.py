"""How long to search for the minimum."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple, SupportsIndex

import torch
from torch import distributed

from equipool.checks import as_count
from equipool.private_torch import outside_compiler


class Budget(NamedTuple):
    """How long one call may search."""

    num_steps: int
    """The largest number of steps."""

    converged_at: float = 1e-3
    """A set counts as converged when no component of its gradient exceeds this."""

    stop_at: float | None = None
    """A set stops when no component of its gradient exceeds this; None if every set takes every
    step."""


class Steps(ABC):
    """How long a layer searches. The layer asks for a budget once per call.

    A subclass must provide `budget` and the attribute `tolerance`.
    """

    tolerance: float
    """A set counts as converged when no component of its gradient exceeds this."""

    drawn = 0
    """How many numbers this has drawn from the sequence that all processes share. Saved with the
    layer."""

    @abstractmethod
    def budget(self, training: bool) -> Budget:
        """The budget of the next call.

        Args:
            training: whether the layer is in training mode. The budget may differ between training
                and evaluation, and from call to call.
        """

    @property
    def max_steps(self) -> int:
        """The largest number of steps in evaluation."""
        return self.budget(training=False).num_steps


@dataclass(frozen=True)
class FixedSteps(Steps):
    """Take a fixed number of steps, as the paper does.

    Args:
        num_steps: the number of steps.
        tolerance: a set counts as converged when no component of its gradient exceeds this. It
            changes what `Solution.converged` reports, and which sets `Implicit` differentiates
            implicitly, but not the output.

    Example:
        >>> layer = equipool.EquilibriumAggregation(3, 8, steps=FixedSteps(20, tolerance=1e-4))
        >>> layer.solve(torch.randn(5, 3)).max_steps
        20
    """

    num_steps: int = 10
    tolerance: float = 1e-3

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_steps", as_count("num_steps", self.num_steps))
        _check_tolerance(self.tolerance)

    def budget(self, training: bool) -> Budget:
        return Budget(self.num_steps, self.tolerance)


@dataclass(frozen=True)
class ToTolerance(Steps):
    """Search until no component of a set's gradient exceeds the tolerance.

    A set that reaches the tolerance stops. Without gradients, stopped sets are dropped from the
    batch and cost no more; with gradients they are masked.

    Args:
        tolerance: a set stops, and counts as converged, when no component of its gradient exceeds
            this.
        max_steps: the largest number of steps.

    Example:
        >>> layer = equipool.EquilibriumAggregation(3, 8, steps=ToTolerance(1e-3, max_steps=500))
        >>> layer.solve(torch.randn(5, 3)).converged
        tensor([True])
    """

    tolerance: float = 1e-3
    max_steps: int = 200

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_steps", as_count("max_steps", self.max_steps))
        _check_tolerance(self.tolerance)

    def budget(self, training: bool) -> Budget:
        return Budget(self.max_steps, self.tolerance, self.tolerance)


@dataclass(frozen=True)
class RandomSteps(Steps):
    """Draw the number of steps of each training call; take `max_steps` steps in evaluation.

    A layer trained this way cannot rely on where the search happens to stop, so it learns an energy
    whose minimum is the answer. Combine it with `Truncated`, whose backward pass costs the same
    for every number of steps.

    The numbers come from torch's CPU generator: `torch.manual_seed` makes them reproducible, and
    `torch.utils.checkpoint` repeats them. With several processes they come from a sequence that is
    the same in all of them instead, so that none waits for a longer search; checkpointing does not
    repeat that one, and a layer's state holds its place in it. A draw breaks the graph of
    `torch.compile`, which compiles each number once.

    Args:
        min_steps: the smallest number of steps, 1 or more.
        max_steps: the largest number of steps. See `choices` for those in between.
        tolerance: as in `FixedSteps`.

    Example:
        >>> RandomSteps(5, 80).choices
        (5, 10, 20, 40, 80)
    """

    min_steps: int = 5
    max_steps: int = 40
    tolerance: float = 1e-3

    def __post_init__(self) -> None:
        for name, least in (("min_steps", 1), ("max_steps", self.min_steps)):
            object.__setattr__(self, name, as_count(name, getattr(self, name), least=least))
        _check_tolerance(self.tolerance)

    @property
    def choices(self) -> tuple[int, ...]:
        """The numbers that are drawn, each as likely as the others: `min_steps`, doubled until it
        reaches `max_steps`."""
        doubled = [self.min_steps]
        while 2 * doubled[-1] < self.max_steps:
            doubled.append(2 * doubled[-1])
        return tuple(dict.fromkeys((*doubled, self.max_steps)))

    def budget(self, training: bool) -> Budget:
        return Budget(self._draw() if training else self.max_steps, self.tolerance)

    @outside_compiler
    def _draw(self) -> int:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "a captured step would repeat the one number of steps that RandomSteps draws now: "
                "capture a step for each number in layer.steps.choices, with layer.steps set to it"
            )
        several = distributed.is_available() and distributed.is_initialized()
        if several and distributed.get_world_size() > 1:
            object.__setattr__(self, "drawn", self.drawn + 1)
            return random.Random(self.drawn).choice(self.choices)
        return self.choices[int(torch.randint(len(self.choices), (), device="cpu"))]


def as_steps(steps: Steps | SupportsIndex | None) -> Steps:
    """The rule that a layer's argument `steps` stands for."""
    if isinstance(steps, Steps):
        return steps
    if steps is None:
        return FixedSteps()
    if isinstance(steps, type):
        raise TypeError(
            f"steps is the class {steps.__name__}: pass an instance, such as FixedSteps(10)"
        )
    return FixedSteps(
        as_count("steps", steps, expected="an int of 0 or more, or FixedSteps(...) or the like")
    )


def _check_tolerance(tolerance: float) -> None:
    if not tolerance >= 0:
        raise ValueError(f"tolerance is {tolerance!r}, expected 0 or more")
