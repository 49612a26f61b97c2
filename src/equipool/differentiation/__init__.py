"""How gradients pass through the solve."""

from equipool.differentiation.base import Differentiation
from equipool.differentiation.implicit import Implicit
from equipool.differentiation.last_steps import OneStep, Truncated
from equipool.differentiation.unrolled import Unrolled

__all__ = ["Differentiation", "Implicit", "OneStep", "Truncated", "Unrolled"]
