"""How long to search for the minimum."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass


class Steps(ABC):
    """How long a layer searches."""

    tolerance: float


@dataclass(frozen=True)
class Fixed(Steps):
    """Take a fixed number of steps, as the paper does.

    Args:
        num_steps: the number of steps.
        tolerance: a set counts as converged when no component of its gradient exceeds this.
    """

    num_steps: int = 10
    tolerance: float = 1e-3

    def __post_init__(self) -> None:
        if self.num_steps < 0:
            raise ValueError(f"num_steps is {self.num_steps!r}, expected 0 or more")


@dataclass(frozen=True)
class ToTolerance(Steps):
    """Search until no component of a set's gradient exceeds the tolerance.

    Args:
        tolerance: a set stops when no component of its gradient exceeds this.
        max_steps: the largest number of steps.
    """

    tolerance: float = 1e-3
    max_steps: int = 200

    def __post_init__(self) -> None:
        if self.max_steps < 0:
            raise ValueError(f"max_steps is {self.max_steps!r}, expected 0 or more")
