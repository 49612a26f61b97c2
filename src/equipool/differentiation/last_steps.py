"""Differentiation through the last steps alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from equipool.checks import as_count
from equipool.descent import Descent, Differentiation, Search
from equipool.ops.derivatives import attach
from equipool.solver_state import with_shared, with_unchanged


class Truncated(Differentiation):
    """Differentiate through the last steps alone, as if the search had begun there with the
    momentum it had. The output is that of `Unrolled` to the last bit. The gradient leaves out the
    contribution of earlier steps, and the gradient of the start is zero except for sets that never
    left it, such as empty ones. The auxiliary loss passes gradients through the last steps, too.

    With `ToTolerance`, gradients pass through further steps, taken from rest where the set ended;
    they change nothing of the search except the auxiliary loss, which counts them. A second
    gradient is that of the last steps as well.

    `Truncated(1)` is the cheapest gradient: its backward pass costs one step however many were
    taken. At a minimum it has the direction of the implicit gradient if the energy curves equally
    in all directions; elsewhere it is a rough approximation. One step is too few for the auxiliary
    loss to train the solver's step size.

    Args:
        num_steps: the number of steps, 1 or more.

    Example:
        >>> layer = equipool.EquilibriumAggregation(3, 8, differentiation=Truncated(2))
        >>> layer(torch.randn(5, 3)).sum().backward()
    """

    def __init__(self, num_steps: int) -> None:
        self.num_steps = as_count("num_steps", num_steps, least=1)

    def __call__(self, search: Search) -> Descent:
        descent, path = follow_last_steps(search, self.num_steps)
        path = attach(path, search.start, *search.solver.parameters())
        return descent.at(_Follow.apply(descent.y.detach(), path))

    def __repr__(self) -> str:
        return f"Truncated({self.num_steps})"


def follow_last_steps(search: Search, num_steps: int) -> tuple[Descent, Tensor]:
    """Search with a graph of the last `num_steps` steps alone. Returns the result, and a tensor
    `[num_rows, K]` near its `y` that gradients pass through."""
    if not torch.is_grad_enabled():
        descent = search.solve()
        return descent, descent.y
    if search.budget.stop_at is None:
        descent = _solve_with_graph_of_last(search, num_steps)
        return descent, descent.y
    return _solve_and_take_further_steps(search, num_steps)


def _solve_with_graph_of_last(search: Search, num_steps: int) -> Descent:
    first = max(search.budget.num_steps - num_steps, 0)
    if first == 0:
        descent = search.begin()
    else:
        with torch.no_grad():
            descent = search.run(search.begin(), first)
        descent = _resume_with_gradients(search, descent)
    return search.run(descent, search.budget.num_steps - first).finish()


def _resume_with_gradients(search: Search, descent: Descent) -> Descent:
    """Re-read the learned scalars, so that gradients pass from here on. For a row that has not left
    the start, such as an empty set, they pass to the start as well."""
    fresh = search.solver.init(search.start, search.budget.num_steps, search.objective)
    state = with_shared(descent.state, fresh)
    # A solver may step from y, or from a point of its own.
    unmoved = (state.y == search.start).all(-1)
    return descent._replace(state=with_unchanged(state, fresh, unmoved))


def _solve_and_take_further_steps(search: Search, num_steps: int) -> tuple[Descent, Tensor]:
    """Which step is the last of a set is known only after it was taken, so gradients pass through
    steps beyond the end."""
    with torch.no_grad():
        end = search.run(search.begin(), search.budget.num_steps, search.budget.stop_at)
    further = search.run(_at_rest(search, end, num_steps), num_steps).finish()
    descent = further._replace(state=end.state, num_steps=end.with_rows().num_steps, path=end.path)
    return descent, further.y


def _at_rest(search: Search, descent: Descent, num_steps: int) -> Descent:
    """With a new solver state where the search ended, before `num_steps` further steps. Momentum
    left over from the search would carry the sets away from the minimum."""
    unmoved = (descent.y == search.start).all(-1, keepdim=True)
    end = torch.where(unmoved, search.start, descent.y)
    state = search.solver.at_rest(descent.state, end, num_steps, search.objective)
    return descent._replace(state=state)


class _Follow(torch.autograd.Function):
    """Returns `y` bit for bit; backpropagates into `path`."""

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
