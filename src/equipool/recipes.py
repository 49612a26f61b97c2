"""Settings of a layer that belong together."""

from __future__ import annotations

from typing import Any

from equipool.differentiation import Truncated
from equipool.regularizers import SquaredNorm
from equipool.solvers import Nesterov
from equipool.steps import RandomSteps

AUX_WEIGHT = 1e-3  # of the auxiliary loss, beside the settings of `converging`


def converging() -> dict[str, Any]:
    """Settings that train a layer to reach the minimum of its energy. Add the auxiliary loss to
    yours with a weight of about 1e-3.

    - The regulariser keeps the energy curved: its weight is 1 at first, and the scaling
      `"log-mean"` does not divide it by the number of elements. With the paper's `"log"` an energy
      of many elements is nearly flat in some directions, and a search drifts along them for
      hundreds of steps.
    - In training the number of steps is random, and gradients go through the last five, so that
      the network cannot rely on where the search stops.
    - Steps are bounded, of the size 0.5 at first.

    With the layer's defaults, which are the paper's, trained networks stop before the minimum.
    `diagnostics.path_independence` measures the difference. `equipool train` has `--recipe
    converging`.

    Example:
        >>> layer = equipool.EquilibriumAggregation(3, 8, **converging())
        >>> with equipool.record(diagnostics=False) as solutions:
        ...     y = layer(torch.randn(5, 3))
        >>> loss = y.square().mean() + 1e-3 * solutions.aux_loss
    """
    return {
        "regularizer": SquaredNorm(1.0),
        "scaling": "log-mean",
        "solver": Nesterov(0.5, momentum=0.5, max_step=0.5, curvature_safe=True),
        "differentiation": Truncated(5),
        "steps": RandomSteps(5, 40),
    }
