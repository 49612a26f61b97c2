"""Comparison of differentiation methods on a batch."""

from equipool.comparison.agreement import Agreement
from equipool.comparison.compare import compare_gradients, usual_ways
from equipool.comparison.cost import Seconds
from equipool.comparison.result import GradientComparison, GradientRow

__all__ = [
    "Agreement",
    "GradientComparison",
    "GradientRow",
    "Seconds",
    "compare_gradients",
    "usual_ways",
]
