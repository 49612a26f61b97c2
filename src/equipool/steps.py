"""How long to search for the minimum."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple, SupportsIndex

import torch
from torch import distributed

from equipool.checks import as_count


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

    @abstractmethod
    def budget(self, training: bool) -> Budget:
        """The budget of the next call.

        Args:
            training: whether the layer is in training mode. The budget may differ between training
                and evaluation, and from call to call.
        """


@dataclass(frozen=True)
class Fixed(Steps):
    """Take a fixed number of steps, as the paper does.

    Args:
        num_steps: the number of steps.
        tolerance: a set counts as converged when no component of its gradient exceeds this. It
            changes what `Solution.converged` reports, and which sets `Implicit` differentiates
            implicitly, but not the output.

    Example:
        >>> layer = equipool.EquilibriumAggregation(3, 8, steps=Fixed(20))
        >>> layer.num_steps
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
    """Draw the number of steps of each training call; take `most` steps in evaluation.

    A layer trained this way cannot rely on where the search happens to stop, so it learns an energy
    whose minimum is the answer. Combine it with `Truncated`, whose backward pass costs the same
    for every number of steps.

    The numbers come from torch's CPU generator: `torch.manual_seed` makes them reproducible, and
    `torch.utils.checkpoint` repeats them. With several processes they come from a sequence that is
    the same in all of them instead, so that none waits for a longer search; checkpointing does not
    repeat that one. A draw breaks the graph of `torch.compile`, which compiles each number once.

    Args:
        least: the smallest number of steps, 1 or more.
        most: the largest number of steps. See `choices` for those in between.
        tolerance: as in `Fixed`.

    Example:
        >>> steps = RandomSteps(5, 80)
        >>> steps.choices
        (5, 10, 20, 40, 80)
        >>> layer = equipool.EquilibriumAggregation(3, 8, steps=steps).eval()
        >>> layer.num_steps
        80
    """

    least: int = 5
    most: int = 80
    tolerance: float = 1e-3

    def __post_init__(self) -> None:
        for name, least in (("least", 1), ("most", self.least)):
            object.__setattr__(self, name, as_count(name, getattr(self, name), least=least))
        _check_tolerance(self.tolerance)
        object.__setattr__(self, "_shared", random.Random(0))

    @property
    def choices(self) -> tuple[int, ...]:
        """The numbers that are drawn, each as likely as the others: `least`, doubled until it
        reaches `most`."""
        doubled = [self.least]
        while 2 * doubled[-1] < self.most:
            doubled.append(2 * doubled[-1])
        return tuple(dict.fromkeys((*doubled, self.most)))

    def budget(self, training: bool) -> Budget:
        return Budget(self._draw() if training else self.most, self.tolerance)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _draw(self) -> int:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "a captured step would repeat the one number of steps that RandomSteps draws now: "
                "capture a step for each number in layer.steps.choices, with layer.steps set to it"
            )
        several = distributed.is_available() and distributed.is_initialized()
        if several and distributed.get_world_size() > 1:
            return self._shared.choice(self.choices)  # type: ignore[attr-defined]
        return self.choices[int(torch.randint(len(self.choices), (), device="cpu"))]


def as_steps(steps: Steps | SupportsIndex | None, num_steps: int | None = None) -> Steps:
    """Read the arguments `steps` and `num_steps` of a layer."""
    if steps is not None and num_steps is not None:
        raise ValueError(
            f"steps is {steps!r} and num_steps is {num_steps!r}: give one of them; num_steps=n is "
            "short for steps=Fixed(n)"
        )
    if isinstance(steps, Steps):
        return steps
    if num_steps is not None:
        return Fixed(num_steps)
    if steps is None:
        return Fixed()
    if isinstance(steps, type):
        raise TypeError(f"steps is the class {steps.__name__}: pass an instance, such as Fixed(10)")
    return Fixed(
        as_count("steps", steps, expected="an int of 0 or more, or Fixed(...) or the like")
    )


def with_num_steps(steps: Steps, num_steps: int) -> Fixed:
    """The same fixed search with another number of steps."""
    if not isinstance(steps, Fixed):
        raise AttributeError(
            f"num_steps cannot be set because the layer's steps are {steps!r}: assign layer.steps, "
            f"for example layer.steps = Fixed({num_steps!r})"
        )
    return replace(steps, num_steps=num_steps)


def _check_tolerance(tolerance: float) -> None:
    if not tolerance >= 0:
        raise ValueError(f"tolerance is {tolerance!r}, expected 0 or more")
