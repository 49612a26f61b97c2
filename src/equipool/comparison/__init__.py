"""Comparison of differentiation methods on a batch, and of searches by steps and starts."""

from equipool.comparison.compare import compare_gradients, usual_methods
from equipool.comparison.independence import PathIndependence, path_independence
from equipool.comparison.result import Agreement, GradientComparison, GradientRow, Seconds

__all__ = [
    "Agreement", "GradientComparison", "GradientRow", "PathIndependence", "Seconds",
    "compare_gradients", "path_independence", "usual_methods",
]  # fmt: skip
