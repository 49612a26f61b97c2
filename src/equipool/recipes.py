"""Settings of a layer that belong together."""

from __future__ import annotations

from typing import Any, TypedDict

from equipool.differentiation import Differentiation, Truncated
from equipool.solvers import RestrainedNesterov, Solver
from equipool.steps import RandomSteps, Steps


class Recipe(TypedDict):
    """Arguments of a layer."""

    solver: Solver[Any]
    differentiation: Differentiation
    steps: Steps


def converging() -> Recipe:
    """Settings that train a layer towards the minimum of its energy: a random number of bounded
    steps, and gradients through the last ten. Add the auxiliary loss to yours with a weight of
    about 1e-4; without it the search may leave the minimum again after more steps than in training.

    With the layer's defaults, which are the paper's, trained networks stop before the minimum.
    `path_independence` measures the difference. `equipool train` has `--recipe converging`.

    Example:
        >>> layer = equipool.EquilibriumAggregation(3, 8, **converging())
        >>> with equipool.record(diagnostics=False) as solutions:
        ...     y = layer(torch.randn(5, 3))
        >>> loss = y.square().mean() + 1e-4 * solutions.aux_loss
    """
    return {
        "solver": RestrainedNesterov(momentum=0.5, max_step=0.5, curvature_safe=True),
        "differentiation": Truncated(10),
        "steps": RandomSteps(10, 80),
    }
