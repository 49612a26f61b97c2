"""How outputs change when elements are left out."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Literal, SupportsIndex

import torch
from torch import Tensor

from equipool.aggregation import EquilibriumAggregation
from equipool.checks import check_elements, check_part
from equipool.inference import in_evaluation_mode, inference_context
from equipool.leave_one_out.exact import exact_changes
from equipool.leave_one_out.newton import newton_changes, solver_for
from equipool.leave_one_out.parts import Parts, gather_parts
from equipool.leave_one_out.result import Influence
from equipool.linear_solvers import LinearSolver
from equipool.ops.execution import shapes_are_fixed
from equipool.sets import Sets, make_sets
from equipool.sharding import refuse_sharded
from equipool.solution import Solution

METHODS = ("newton", "exact")
ROWS_AT_ONCE = 1 << 16  # that a function is called with

Function = Callable[[Tensor], Tensor]


def influence(
    layer: EquilibriumAggregation,
    x: Tensor,
    index: Tensor | Sets | None = None,
    *,
    ptr: Tensor | None = None,
    mask: Tensor | None = None,
    dim_size: SupportsIndex | None = None,
    function: Function | None = None,
    groups: Tensor | None = None,
    method: Literal["newton", "exact"] = "newton",
    gradient: bool = False,
    linear_solver: LinearSolver | None = None,
) -> Influence:
    r"""How the output of a set, and a function of it, changes when an element is left out.

    `"newton"` takes one Newton step from y, on the energy without the element, for all elements of
    all sets at once. At a minimum that is

    $$y_{-i} - y \approx (H - H_i)^{-1} \nabla_y F(x_i, y),$$

    where $H$ is the Hessian of $R + \sum F$ and $H_i$ the element's part of it. The factor of
    `scaling="log"` multiplies the whole energy, so it does not move the minimum and cancels. With
    `"mean"` and `"log-mean"` the number of elements weighs R against F, which is taken into
    account. `"exact"` searches for the minimum without each element, beginning at y, with the
    layer's solver and steps.

    Both give the difference between two minima, without the element and with it. The remaining
    error of the layer's search does not count as a change. Both require a search that has
    converged: sets for which it has not are counted in a warning and marked in
    `Influence.converged`. Removing the only element of a set leaves an empty set, whose output is
    the start. The layer is used in evaluation mode and is not changed; nothing is recorded for
    gradients, and autocast is off.

    Args:
        layer: the trained layer.
        x: elements; `index`, `ptr`, `mask` and `dim_size` describe the sets as in the layer's call.
        function: maps outputs `[rows, K]` to `[rows, ...]`, each row by itself: a head in
            evaluation mode, say, or one of its logits.
        groups: an integer for each element: the elements of a set that have the same one are left
            out together, and the result has one row per set and group.
        method: `"newton"` or `"exact"`.
        gradient: whether to compute the gradient of the function by the features of the elements
            too, by the implicit function theorem. Requires `function`.
        linear_solver: solves the Newton systems. Default: `Cholesky()` for outputs of up to 8
            channels, which finds every negative curvature, and `ConjugateGradients()` beyond, which
            needs fewer products.

    Example:
        >>> layer = equipool.closed_form.mean(1)
        >>> found = influence(layer, torch.tensor([[1.0], [2.0], [6.0]]))
        >>> found.change  # the mean is 3; without the last it would be 1.5
        tensor([[ 1.0000],
                [ 0.5000],
                [-1.5000]])
    """
    check_part("layer", layer, EquilibriumAggregation, "EquilibriumAggregation(3, 8)")
    _check_arguments(function, method, gradient)
    refuse_sharded("influence")
    check_elements(x)
    layer = in_evaluation_mode(layer)
    with inference_context(x.device):
        x = x.clone() if x.is_inference() else x
        solution = layer.solve(x, index, ptr=ptr, mask=mask, dim_size=dim_size)
        every = gather_parts(x, index, ptr, mask, dim_size, groups)
        numbers, parts = every.of_sets(solution.finite)
        dtype = torch.promote_types(x.dtype, torch.float32)
        y = torch.where(solution.finite.unsqueeze(-1), solution.y, 0).to(dtype)
        if method == "newton":
            change, solved = newton_changes(layer, parts, y, linear_solver)
            change = torch.where(solved.unsqueeze(-1), change, torch.nan)
        else:
            change, solved = exact_changes(layer, parts, y)
        emptied = parts.empties
        to_start = (_start_of_empty_sets(layer, parts) - y)[parts.set_of]
        change = torch.where(emptied.unsqueeze(-1), to_start, change).to(x.dtype)
        solved = solved | emptied
        effect = _effects(function, solution.y, change, parts.set_of)
        slopes = _gradient(layer, parts, y, function, linear_solver) if gradient else None
    _warn_of(solution, solved, method)
    place = Placement(x, every, numbers, parts)
    return Influence(
        y=solution.y,
        change=place.of_parts(change),
        effect=None if effect is None else place.of_parts(effect),
        gradient=None if slopes is None else place.of_elements(slopes.to(x.dtype)),
        converged=_known(solution.converged),
        solved=place.of_parts(solved),
        set_index=place.set_index(),
        group_index=every.group_of,
        method=method,
    )


def _check_arguments(function: Function | None, method: str, gradient: bool) -> None:
    if shapes_are_fixed():
        raise RuntimeError(
            "influence reads values, so it can be neither compiled nor captured: call it outside "
            "torch.compile and CUDA graphs"
        )
    if method not in METHODS:
        raise ValueError(f"method is {method!r}, expected one of {', '.join(map(repr, METHODS))}")
    if function is not None and not callable(function):
        raise TypeError(f"function is {function!r}, expected a function of y, such as a head")
    if gradient and function is None:
        raise ValueError("gradient is True without a function, expected a function of y")


def _known(tensor: Tensor | None) -> Tensor:
    assert tensor is not None  # a solve has diagnostics
    return tensor


def _start_of_empty_sets(layer: EquilibriumAggregation, parts: Parts) -> Tensor:
    counts = torch.zeros_like(parts.counts)
    sets = make_sets(parts.index[:0], counts, counts.shape[0], padded=False)
    return layer.start(parts.x[:0], sets)


def _effects(function: Function | None, y: Tensor, change: Tensor, set_of: Tensor) -> Tensor | None:
    """`function(y + change) - function(y)`, a row per part."""
    if function is None:
        return None
    before = _call(function, y)[set_of]
    pieces = zip(change.split(ROWS_AT_ONCE), set_of.split(ROWS_AT_ONCE), strict=True)
    after = [_call(function, y[sets] + moved) for moved, sets in pieces if moved.shape[0]]
    return torch.cat(after) - before if after else before


def _call(function: Function, y: Tensor) -> Tensor:
    values = function(y)
    if not isinstance(values, Tensor) or values.shape[:1] != y.shape[:1]:
        found = f"shape {list(values.shape)}" if isinstance(values, Tensor) else repr(values)
        raise ValueError(
            f"function returned {found} for y of shape {list(y.shape)}, expected a tensor with one "
            "row for each row of y"
        )
    return values


def _gradient(
    layer: EquilibriumAggregation, parts: Parts, y: Tensor, function: Function | None,
    linear_solver: LinearSolver | None,
) -> Tensor:  # fmt: skip
    r"""The gradient of the function's sum by x, `[M, C]`: $-w^\top \partial_x \nabla_y E$ with
    $H w = \partial_y f$; NaN for sets whose Hessian is not positive definite."""
    assert function is not None
    with torch.enable_grad():
        point, x = y.clone().requires_grad_(), parts.x.clone().requires_grad_()
        (by_y,) = torch.autograd.grad(_call(function, point.to(x.dtype)).sum(), point)
        energy = layer.bind(x, parts.sets)
        by_energy = energy.gradient(y)
    solver = linear_solver or solver_for(y.shape[-1])
    w, solved, _ = solver(energy.hessian(y), by_y)
    (by_x,) = torch.autograd.grad(by_energy, x, -w)
    return torch.where(solved[parts.index].unsqueeze(-1), by_x, torch.nan)


class Placement:
    """Puts results in the order of the given x, or in one row per set and group.

    Padding changes nothing, so its rows are zero. Rows of sets that are not finite are NaN.
    """

    def __init__(self, x: Tensor, every: Parts, numbers: Tensor, parts: Parts) -> None:
        self.every, self.numbers, self.parts = every, numbers, parts
        self.shape = (x.values() if x.is_nested else x).shape[:-1]

    def of_parts(self, values: Tensor) -> Tensor:
        """Place `[Q, ...]`, a row for each part of the finite sets."""
        if self.every.group_of is None:
            return self.of_elements(values)
        rows = values.new_full((self.every.num_parts, *values.shape[1:]), _unknown(values))
        rows[self.numbers] = values
        return rows

    def of_elements(self, values: Tensor) -> Tensor:
        """Place `[M, ...]`, a row for each element of the finite sets."""
        rows = values.new_zeros(self.shape.numel(), *values.shape[1:])
        rows[self.every.positions] = _unknown(values)
        rows[self.parts.positions] = values
        return rows.view(*self.shape, *values.shape[1:])

    def set_index(self) -> Tensor:
        """The set of each row; -1 for padding."""
        if self.every.group_of is not None:
            return self.every.set_of
        rows = self.every.index.new_full((self.shape.numel(),), -1)
        rows[self.every.positions] = self.every.index
        return rows.view(self.shape)


def _unknown(values: Tensor) -> float:
    return torch.nan if values.is_floating_point() else 0


def _warn_of(solution: Solution, solved: Tensor, method: str) -> None:
    """Count what is not known, in one warning."""
    messages = []
    open_sets = ~_known(solution.converged) & solution.finite
    if open_sets.any():
        worst = float(_known(solution.residual)[open_sets].max())
        messages.append(
            f"{int(open_sets.sum())} of {open_sets.shape[0]} sets have not converged (gradient of "
            f"up to {worst:.2g}), so their influence is not that of a minimum: search longer, "
            "layer.steps = ToTolerance(1e-3, max_steps=1000), or train with equipool.converging()"
        )
    if not solved.all():
        number = f"{int((~solved).sum())} of {solved.shape[0]} removals"
        messages.append(
            f"for {number} the energy that is left does not curve upwards at y, so the change is "
            'NaN: use method="exact"'
            if method == "newton"
            else f"the searches of {number} have not converged: give the layer more steps"
        )
    if messages:
        warnings.warn("; ".join(messages), UserWarning, stacklevel=3)
