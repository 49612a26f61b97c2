"""Accuracy and cost of each differentiation method, and whether y depends on steps and start."""

from equipool.diagnostics.gradients import Agreement, GradientRow, compare_gradients, usual_methods
from equipool.diagnostics.independence import AfterSteps, PathIndependence, path_independence

__all__ = [
    "AfterSteps", "Agreement", "GradientRow", "PathIndependence", "compare_gradients",
    "path_independence", "usual_methods",
]  # fmt: skip
