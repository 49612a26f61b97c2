"""The minimum itself, from a potential that knows it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from equipool.objective import Objective
from equipool.solvers.base import Solver


class ExactState(NamedTuple):
    y: Tensor  # [num_rows, K]
    gradient: Tensor  # [num_rows, K] zero, as at a minimum
    max_passes: int
    error: Tensor | None = None  # [num_rows] as in `Minimum`
    passes: Tensor | None = None  # [num_rows]

    @property
    def point(self) -> Tensor:
        return self.y


class Exact(Solver[ExactState]):
    """The minimum, found by the potential: the default solver with a `LocationPotential`.

    For potentials whose summed form has a `minimum`, with a `SquaredNorm` as regulariser or none.
    The gradient is that of the minimum, in closed form, so `differentiation` stays `Unrolled`. The
    layer's `steps` limit the passes over a set. In a `Solution`, `num_steps` are the passes taken,
    and a set counts as converged if the bound of its error is finite.

    Over chunks and processes the minimum is found from the energy's gradient and Hessian, in
    float64, for potentials whose channels are independent. Its gradient with respect to asymmetries
    is then not bounded between two elements far apart.

    Example:
        >>> potential = equipool.LocationPotential(3, 8)
        >>> layer = equipool.EquilibriumAggregation(3, 8, potential=potential, regularizer=0.1)
        >>> layer.solver
        Exact()
    """

    capturable = False  # how many passes there are depends on values
    in_one_step = True
    num_steps = 80

    def init(self, y: Tensor, num_steps: int, objective: Objective) -> ExactState:
        return ExactState(y, torch.zeros_like(y), num_steps)

    def step(self, objective: Objective, state: ExactState) -> ExactState:
        y, error, passes = objective.minimum(state.y, state.max_passes)
        return state._replace(y=y, error=error, passes=passes)
