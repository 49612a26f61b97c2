"""Comparison of differentiation methods on a batch."""

from equipool.comparison.compare import compare_gradients, usual_methods
from equipool.comparison.result import Agreement, GradientComparison, GradientRow, Seconds

__all__ = [
    "Agreement", "GradientComparison", "GradientRow", "Seconds", "compare_gradients",
    "usual_methods",
]  # fmt: skip
