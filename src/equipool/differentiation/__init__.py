"""How gradients pass through the search."""

from equipool.descent import Differentiation, Unrolled
from equipool.differentiation.implicit import Implicit
from equipool.differentiation.last_steps import Truncated

__all__ = ["Differentiation", "Implicit", "Truncated", "Unrolled"]
