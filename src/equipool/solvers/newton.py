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
    point: Tensor  # [num_rows, K]
    gradient: Tensor  # [num_rows, K]
    rung: Tensor  # [num_rows, 1] of the damping: 0 for none, then each ten times the one below
    first: SolverState | None = None  # of the solver before
    first_steps: int = 0  # that this solver has left


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

    With `after`, another solver approaches the minimum cheaply and the last `num_steps` steps
    refine it. A search that reaches its tolerance before that stops without Newton steps.

    Args:
        damping: d, the smallest nonzero damping, as a fraction of the curvature.
        after: takes all but the last steps. Default: none; every step is Newton's.
        num_steps: with `after`, the number of Newton steps.

    Example:
        >>> solver = Newton(after=equipool.Nesterov())
        >>> layer = equipool.EquilibriumAggregation(3, 2, solver=solver, steps=50)
        >>> layer.solve(torch.randn(5, 3)).converged
        tensor([True])
    """

    capturable = False  # factorisations wait for the device

    def __init__(
        self, damping: float = 1e-3, after: Solver[Any] | None = None, num_steps: int = 3
    ) -> None:
        super().__init__()
        if not (math.isfinite(damping) and damping > 0):
            raise ValueError(f"damping is {damping}, expected more than 0")
        if after is not None:
            check_part("after", after, Solver, "Nesterov()")
        self.damping = damping
        self.after = after
        self.num_steps = as_count("num_steps", num_steps, least=1)

    def init(self, y: Tensor, num_steps: int, objective: Objective) -> NewtonState:
        if y.shape[-1] > LARGEST:
            raise ValueError(
                f"y has {y.shape[-1]} channels, expected at most {LARGEST} for Newton's method, "
                "which takes a Hessian product for each: use SafeguardedNesterov instead"
            )
        if self.after is None:
            return NewtonState(y, y, torch.zeros_like(y), _lowest_rung(y))
        num_first = self._first_steps(num_steps)
        return self._begin(self.after.init(y, num_first, objective), num_first)

    def at_rest(
        self, state: NewtonState, y: Tensor, num_steps: int, objective: Objective
    ) -> NewtonState:
        if self.after is None:
            return self.init(y, num_steps, objective)
        num_first = self._first_steps(num_steps)
        return self._begin(self.after.at_rest(state.first, y, num_first, objective), num_first)

    def step(self, objective: Objective, state: NewtonState) -> NewtonState:
        if self.after is not None and state.first is not None and state.first_steps > 0:
            first = self.after.step(objective, state.first._replace(y=state.y))
            left = state.first_steps - 1
            point = first.point if left > 0 else first.y
            return NewtonState(first.y, point, first.gradient, state.rung, first, left)
        g = objective.gradient(state.y)
        factor, accepted, rung = self._attempt(objective, state, g)
        y = torch.where(accepted, state.y - _solve(factor, g), state.y)
        if self.after is not None:
            # Its scalars need a gradient, also where these are the only steps.
            y = attach(y, *self.after.parameters())
        return state._replace(y=y, point=y, gradient=g, rung=rung)

    def _first_steps(self, num_steps: int) -> int:
        return max(num_steps - self.num_steps, 0)

    def _begin(self, first: SolverState, num_first: int) -> NewtonState:
        point = first.point if num_first > 0 else first.y
        rung = _lowest_rung(first.y)
        return NewtonState(first.y, point, first.gradient, rung, first, num_first)

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
        return f"damping={self.damping}, num_steps={self.num_steps}"


def _lowest_rung(y: Tensor) -> Tensor:
    return torch.zeros(y.shape[0], 1, dtype=torch.long, device=y.device)


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
