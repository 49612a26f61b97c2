"""Damped Newton's method, for small outputs: alone, or after another solver."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipool.checks import as_count, check_part
from equipool.objective import Objective, assemble
from equipool.ops.derivatives import attach
from equipool.solvers.base import Solver, SolverState, slack

LARGEST = 512  # output size: a step takes as many Hessian products, and a matrix of it squared
TRIES = 4  # dampings that a step tries
DECREASE = 0.1  # of gradient times step: what a step must lower the energy by
TOP = 12  # the highest rung of damping


class NewtonState(NamedTuple):
    y: Tensor  # [num_rows, K]
    gradient: Tensor  # [num_rows, K]
    rung: Tensor  # [num_rows, 1] of the damping: 0 for none, then each ten times the one below

    @property
    def point(self) -> Tensor:
        return self.y


class Newton(Solver[NewtonState]):
    r"""Newton's method with the damping of Levenberg and Marquardt:

    $$y \leftarrow y - (H + \lambda I)^{-1} \nabla E(y).$$

    H is assembled from one Hessian product per channel of y, so this is for small outputs, and for
    high accuracy: near a minimum each step doubles the number of correct digits. $\lambda$ is zero
    at first. If the matrix is not positive definite or the step does not lower the energy, larger
    values are tried, $d \lVert H \rVert$, $10 d \lVert H \rVert$ and so on, four per step. If none
    works, y stays and the next step continues with larger values. After an accepted step the next
    one begins one value lower. The energy never rises by more than rounding.

    For differentiation the matrix is a constant. At a minimum, where $\nabla E = 0$, the gradient
    of one undamped step is therefore exactly the implicit one,
    $-H^{-1} \, \partial_\theta \nabla E$.

    Args:
        damping: d, the smallest nonzero damping, as a fraction of the curvature.

    Example:
        >>> layer = equipool.EquilibriumAggregation(3, 2, solver=Newton(), steps=30)
        >>> layer.solve(torch.randn(5, 3)).converged
        tensor([True])
    """

    recordable = False  # factorisations wait for the device

    def __init__(self, damping: float = 1e-3) -> None:
        super().__init__()
        if not (math.isfinite(damping) and damping > 0):
            raise ValueError(f"damping is {damping}, expected more than 0")
        self.damping = damping

    def init(self, y: Tensor, num_steps: int, objective: Objective) -> NewtonState:
        if y.shape[-1] > LARGEST:
            raise ValueError(
                f"y has {y.shape[-1]} channels, expected at most {LARGEST} for Newton's method, "
                "which takes a Hessian product for each: use SafeguardedNesterov instead"
            )
        rung = torch.zeros(y.shape[0], 1, dtype=torch.long, device=y.device)
        return NewtonState(y, torch.zeros_like(y), rung)

    def step(self, objective: Objective, state: NewtonState) -> NewtonState:
        g = objective.gradient(state.y)
        factor, accepted, rung = self._attempt(objective, state, g)
        return NewtonState(torch.where(accepted, state.y - _solve(factor, g), state.y), g, rung)

    @torch.no_grad()
    def _attempt(
        self, objective: Objective, state: NewtonState, g: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Try one damping after the other, and settle on the first that lowers the energy: the
        Cholesky factor of H + shift I, whether there is one, and the next step's first rung."""
        matrix = assemble(objective.hessian(state.y), state.y)
        energy = objective.value(state.y)
        factor = torch.eye(g.shape[-1], dtype=g.dtype, device=g.device).expand_as(matrix)
        accepted = torch.zeros_like(state.rung, dtype=torch.bool)
        next_rung = state.rung + TRIES
        for rung in (state.rung + i for i in range(TRIES)):
            trial, definite = _factorise(matrix, self._damping(rung.to(g.dtype)))
            step = _solve(trial, g)
            reached = objective.value(state.y - step)
            needed = energy - DECREASE * (g * step).sum(-1) + slack(energy)
            lower = (reached <= needed) & torch.isfinite(reached)
            first = (definite & lower).unsqueeze(-1) & ~accepted
            factor = torch.where(first.unsqueeze(-1), trial, factor)
            next_rung = torch.where(first, rung - 1, next_rung)
            accepted = accepted | first
        return factor, accepted, next_rung.clamp(0, TOP)

    def _damping(self, rung: Tensor) -> Tensor:
        return torch.where(rung > 0, self.damping * 10.0 ** (rung - 1), 0)

    def extra_repr(self) -> str:
        return f"damping={self.damping}"


def _factorise(matrix: Tensor, damping: Tensor) -> tuple[Tensor, Tensor]:
    """The Cholesky factor of the matrix with its damping, and whether there is one."""
    norm = matrix.abs().sum(-1).amax(-1, keepdim=True)
    # A plane has no curvature that the damping could be a part of.
    shift = damping * torch.where(norm == 0, 1, norm)
    factor, info = torch.linalg.cholesky_ex(
        matrix + torch.diag_embed(shift.expand_as(matrix[..., 0]))
    )
    return factor, info == 0


def _solve(factor: Tensor, g: Tensor) -> Tensor:
    return torch.cholesky_solve(g.unsqueeze(-1), factor).squeeze(-1)


class PolishedState(NamedTuple):
    y: Tensor  # [num_rows, K]
    point: Tensor  # [num_rows, K]
    gradient: Tensor  # [num_rows, K]
    first: SolverState
    newton: NewtonState
    steps_left: int


class Polished(Solver[PolishedState]):
    """Another solver followed by Newton steps: the first steps approach a minimum cheaply, the last
    ones refine it. The output size must be small (see `Newton`).

    If a search reaches the tolerance before its budget is spent, it stops without Newton steps.

    Args:
        solver: takes the first steps.
        newton_steps: the number of Newton steps at the end.
        newton: takes the last steps. Default: `Newton()`.

    Example:
        >>> solver = Polished(equipool.Nesterov())
        >>> layer = equipool.EquilibriumAggregation(3, 2, solver=solver, num_steps=50)
        >>> layer.solve(torch.randn(5, 3)).converged
        tensor([True])
    """

    recordable = False

    def __init__(
        self, solver: Solver[Any], newton_steps: int = 3, newton: Newton | None = None
    ) -> None:
        super().__init__()
        check_part("solver", solver, Solver, "Nesterov()")
        self.solver = solver
        self.newton_steps = as_count("newton_steps", newton_steps, least=1)
        self.newton = newton if newton is not None else Newton()

    def init(self, y: Tensor, num_steps: int, objective: Objective) -> PolishedState:
        first = self.solver.init(y, self._first_steps(num_steps), objective)
        return self._begin(first, num_steps, objective)

    def at_rest(
        self, state: PolishedState, y: Tensor, num_steps: int, objective: Objective
    ) -> PolishedState:
        first = self.solver.at_rest(state.first, y, self._first_steps(num_steps), objective)
        return self._begin(first, num_steps, objective)

    def step(self, objective: Objective, state: PolishedState) -> PolishedState:
        if state.steps_left > self.newton_steps:
            return self._first_step(objective, state)
        newton = self.newton.step(objective, state.newton._replace(y=state.y))
        # The solver's scalars need a gradient, also where these are the only steps.
        y = attach(newton.y, *self.solver.parameters())
        left = state.steps_left - 1
        return state._replace(
            y=y, point=y, gradient=newton.gradient, newton=newton, steps_left=left
        )

    def _first_steps(self, num_steps: int) -> int:
        return max(num_steps - self.newton_steps, 0)

    def _begin(self, first: SolverState, num_steps: int, objective: Objective) -> PolishedState:
        newton = self.newton.init(first.y, min(num_steps, self.newton_steps), objective)
        point = first.point if num_steps > self.newton_steps else newton.point
        return PolishedState(first.y, point, first.gradient, first, newton, num_steps)

    def _first_step(self, objective: Objective, state: PolishedState) -> PolishedState:
        first = self.solver.step(objective, state.first._replace(y=state.y))
        left = state.steps_left - 1
        point = first.point if left > self.newton_steps else first.y
        return state._replace(
            y=first.y, point=point, gradient=first.gradient, first=first, steps_left=left
        )

    def extra_repr(self) -> str:
        return f"newton_steps={self.newton_steps}"
