"""Differentiation through the last steps alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipool.descent import Budget, Descent, Walk, Wanted, arrive, iterate, pick_up, set_out
from equipool.differentiation.base import Differentiation
from equipool.objective import Objective
from equipool.ops.derivatives import attach
from equipool.solvers.base import Solver


class Tail(NamedTuple):
    """A solve of which the last steps have a graph."""

    descent: Descent
    path: Tensor  # [num_rows, K] an output that gradients pass through, about that of the descent


class LastSteps(Differentiation):
    """What differentiating through the last steps alone has in common, however many they are."""

    num_steps: int

    def __call__(
        self, solver: Solver[Any], objective: Objective, y: Tensor, budget: Budget, wanted: Wanted
    ) -> Descent:
        tail = follow_last_steps(self.num_steps, solver, objective, y, budget, wanted)
        path = attach(tail.path, y, *solver.parameters())
        return tail.descent._replace(y=_Follow.apply(tail.descent.y.detach(), path))


class Truncated(LastSteps):
    """Differentiate through the last steps alone, as if the search had begun there with the
    momentum it had. The output is that of `Unrolled` to the last bit; the gradient leaves out what
    earlier steps owe to the parameters, and the start's gradient is zero but for sets that never
    left it, such as empty ones. The auxiliary loss passes gradients through the last steps, too.

    Where each set is solved to a tolerance (`max_steps`), gradients pass through further steps,
    which are taken from rest where the set ended; of the search itself they change nothing but the
    auxiliary loss, which counts them. A second gradient is that of the last steps as well.

    Args:
        num_steps: how many steps, 1 or more.

    Example:
        >>> layer = equipool.EquilibriumAggregation(3, 8, differentiation=Truncated(2))
        >>> layer(torch.randn(5, 3)).sum().backward()
    """

    def __init__(self, num_steps: int) -> None:
        check_num_steps("num_steps", num_steps)
        self.num_steps = num_steps

    def __repr__(self) -> str:
        return f"Truncated({self.num_steps})"


class OneStep(LastSteps):
    """Differentiate through the last step alone: the cheapest gradient, whose backward pass costs
    one step however many were taken. At a minimum it points where the implicit gradient does as
    far as the energy curves alike in all directions; elsewhere it is a sketch. The auxiliary loss
    does not train the solver's step size: one step of it is too few. All else is as with
    `Truncated(1)`."""

    num_steps = 1


def follow_last_steps(
    num_steps: int,
    solver: Solver[Any],
    objective: Objective,
    y: Tensor,
    budget: Budget,
    wanted: Wanted,
) -> Tail:
    """Solve from `y`, with a graph of the last `num_steps` steps alone."""
    if not torch.is_grad_enabled():
        walk = set_out(solver, objective, y, budget, wanted)
        descent = arrive(iterate(solver, objective, walk, budget, wanted))
        return Tail(descent, descent.y)
    if budget.tolerance is None:
        return _cut(num_steps, solver, objective, y, budget, wanted)
    return _prolong(num_steps, solver, objective, y, budget, wanted)


def check_num_steps(name: str, num_steps: int) -> None:
    if isinstance(num_steps, bool) or not isinstance(num_steps, int) or num_steps < 1:
        raise ValueError(f"{name} is {num_steps!r}, expected an int of 1 or more")


def _cut(
    num_steps: int,
    solver: Solver[Any],
    objective: Objective,
    y: Tensor,
    budget: Budget,
    wanted: Wanted,
) -> Tail:
    """The last of a number of steps that is given."""
    first = max(budget.num_steps - num_steps, 0)
    if first == 0:
        walk = set_out(solver, objective, y, budget, wanted)
    else:
        with torch.no_grad():
            walk = set_out(solver, objective, y, budget, wanted)
            walk = iterate(solver, objective, walk, Budget(first), wanted)
        walk = pick_up(walk, solver, objective, y, budget)
    descent = arrive(iterate(solver, objective, walk, Budget(budget.num_steps - first), wanted))
    return Tail(descent, descent.y)


def _prolong(
    num_steps: int,
    solver: Solver[Any],
    objective: Objective,
    y: Tensor,
    budget: Budget,
    wanted: Wanted,
) -> Tail:
    """Steps beyond the end: which step is a set's last is known only when it has been taken."""
    with torch.no_grad():
        walk = set_out(solver, objective, y, budget, wanted)
        walk = iterate(solver, objective, walk, budget, wanted)
    further = _at_rest(walk, num_steps, solver, objective, y)
    followed = arrive(iterate(solver, objective, further, Budget(num_steps), wanted))
    descent = followed._replace(y=walk.state.y, steps=walk.steps, trajectory=walk.path)
    return Tail(descent, followed.y)


def _at_rest(
    walk: Walk, num_steps: int, solver: Solver[Any], objective: Objective, y: Tensor
) -> Walk:
    """The walk with its state made new where it ended. A momentum that was cut off there would
    carry the sets away from the minimum again."""
    unmoved = (walk.state.y == y).all(-1, keepdim=True)
    end = torch.where(unmoved, y, walk.state.y)
    return walk._replace(state=solver.at_rest(walk.state, end, num_steps, objective))


class _Follow(torch.autograd.Function):
    """One tensor, to the bit, with the gradient of another."""

    generate_vmap_rule = True

    @staticmethod
    def forward(y: Tensor, path: Tensor) -> Tensor:
        return y.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, by_y: Tensor) -> tuple[None, Tensor]:
        return None, by_y
