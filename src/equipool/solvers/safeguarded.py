"""Nesterov's method with steps that are tested before they are taken."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from equipool.objective import Objective
from equipool.solvers.base import Solver, slack

DECREASE = 0.5  # of step size times |gradient|^2: what a step must lower the energy by
GROWTH = 1.1  # of the step size after a step that was taken
SHRINKAGE = 0.5  # of the step size after one that was not
FADING = 0.99  # of the curvature met before, with each step that the energy shows
DIGITS = 1000  # roundings of a point: a curvature is believed between points further apart


class SafeguardedState(NamedTuple):
    y: Tensor  # [num_rows, K]
    point: Tensor  # [num_rows, K]
    gradient: Tensor  # [num_rows, K]
    previous: Tensor  # [num_rows, K] where that gradient was taken
    energy: Tensor  # [num_rows, 1] at the point
    lowest: Tensor  # [num_rows, 1] the lowest energy of any y so far
    size: Tensor  # [num_rows, 1] step size
    age: Tensor  # [num_rows, 1] steps taken since the momentum began
    curvature: Tensor  # [num_rows, 1] the largest met lately


class SafeguardedNesterov(Solver[SafeguardedState]):
    r"""Nesterov's method with an automatic step size for each set. The energy never rises.

    Each step tries one candidate, $c = p - s \nabla E(p)$, and accepts it if the energy decreases
    enough:

    $$y \leftarrow c \quad\text{if}\quad E(c) \le E(p) - \tfrac{s}{2} \lVert \nabla E(p) \rVert^2.$$

    Then $s$ grows a little, and the next point is ahead, $p = y + \tfrac{k}{k + 3} (y - y_{-1})$,
    where $k$ counts the steps since the momentum was reset. Momentum is reset where it leads
    uphill: if $\nabla E(p) \cdot (y - y_{-1}) > 0$, or the energy ahead is above the lowest so far;
    the next point is then y itself. If the candidate is rejected, y and p stay and $s$ is halved.
    So the energy of y never exceeds the lowest so far by more than rounding.

    Where the decrease is lost in the energy's rounding, any step would pass, and it is the change
    of the gradient that limits the step size: $s \le 1 / L$, with $L$ the largest $\lVert \nabla
    E(p) - \nabla E(p_{-1}) \rVert / \lVert p - p_{-1} \rVert$ so far between points that are more
    than rounding apart; while the energy still shows its decrease, older ones slowly fade. So
    further steps at a minimum contract, and so does the derivative through them.

    A step costs a gradient and two energies, about twice a step of `Nesterov`. Nothing is learned;
    gradients pass through the steps, with step sizes and decisions as constants. Energies computed
    in bfloat16 are rough: there the search ends where their rounding hides its progress.

    Args:
        learning_rate: the first step size to try in every set.

    Example:
        >>> solver = SafeguardedNesterov(learning_rate=100.0)  # far too large
        >>> steps = equipool.ToTolerance(1e-3, max_steps=1000)
        >>> layer = equipool.EquilibriumAggregation(3, 8, solver=solver, steps=steps)
        >>> layer.solve(torch.randn(5, 3)).converged
        tensor([True])
    """

    def __init__(self, learning_rate: float = 0.125) -> None:
        super().__init__()
        if not (math.isfinite(learning_rate) and learning_rate > 0):
            raise ValueError(f"learning_rate is {learning_rate}, expected more than 0")
        self.learning_rate = learning_rate

    def init(self, y: Tensor, num_steps: int, objective: Objective) -> SafeguardedState:
        energy = _energy(objective, y)
        size = torch.full_like(energy, self.learning_rate)
        zero, age = torch.zeros_like(y), torch.zeros_like(energy)
        return SafeguardedState(y, y, zero, y, energy, energy, size, age, torch.zeros_like(age))

    def at_rest(
        self, state: SafeguardedState, y: Tensor, num_steps: int, objective: Objective
    ) -> SafeguardedState:
        fresh = self.init(y, num_steps, objective)
        return fresh._replace(size=state.size, curvature=state.curvature)

    def step(self, objective: Objective, state: SafeguardedState) -> SafeguardedState:
        g = objective.gradient(state.point)
        candidate = state.point - state.size * g
        energy, rounding = _energy(objective, candidate), slack(state.lowest)
        with torch.no_grad():
            # By how much the step would lower an energy that is a plane.
            promise = state.size * g.square().sum(-1, keepdim=True)
            enough = energy <= state.energy - DECREASE * promise + rounding
            accepted = enough & (energy <= state.lowest + rounding) & torch.isfinite(energy)
            lowest = torch.where(accepted, torch.minimum(energy, state.lowest), state.lowest)
            uphill = (g * (candidate - state.y)).sum(-1, keepdim=True) > 0
            age = torch.where(accepted, torch.where(uphill, 0, state.age + 1), state.age)
            shows = promise > rounding  # whether the energy can show the decrease
            curvature = _curvature(state, g, shows)
            size = _next_size(state.size, accepted, torch.where(shows, math.inf, 1 / curvature))

        y = torch.where(accepted, candidate, state.y)
        ahead = torch.where(accepted, y + age / (age + 3) * (y - state.y), state.point)
        energy_ahead = _energy(objective, ahead)
        usable = (energy_ahead <= lowest + slack(lowest)) & torch.isfinite(energy_ahead)
        return SafeguardedState(
            y=y,
            point=torch.where(usable, ahead, y),
            gradient=g,
            previous=state.point,
            energy=torch.where(usable, energy_ahead, lowest),
            lowest=lowest,
            # Without a gradient nothing is learned about the step size; it would only grow.
            size=torch.where(promise > 0, size, state.size),
            age=torch.where(usable, age, 0),
            curvature=curvature,
        )

    def extra_repr(self) -> str:
        return f"learning_rate={self.learning_rate}"


@torch.no_grad()
def _energy(objective: Objective, y: Tensor) -> Tensor:
    return objective.value(y).unsqueeze(-1)


def _curvature(state: SafeguardedState, g: Tensor, shows: Tensor) -> Tensor:
    """The largest curvature met lately, 0 before there is one to believe."""
    moved = _norm(state.point - state.previous)
    # Between points that all but coincide, the gradient's change is rounding.
    apart = moved > DIGITS * torch.finfo(g.dtype).eps * _norm(state.point)
    met = torch.where(apart, _norm(g - state.gradient) / moved, 0)
    return torch.maximum(met, torch.where(shows, FADING, 1) * state.curvature)


def _next_size(size: Tensor, accepted: Tensor, limit: Tensor) -> Tensor:
    # Where the energy does not show the decrease every step is accepted. Were the size to grow on,
    # steps at the minimum would stay within rounding while their derivative grows without bound.
    return torch.where(accepted, torch.minimum(GROWTH * size, limit), SHRINKAGE * size)


def _norm(rows: Tensor) -> Tensor:
    return torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
