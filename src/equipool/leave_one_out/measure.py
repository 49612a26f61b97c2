"""How outputs change when elements are left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, SupportsIndex

import torch
from torch import Tensor

from equipool.aggregation import EquilibriumAggregation
from equipool.checks import check_part
from equipool.distributed import refuse_sharded
from equipool.inference import call_on_rows, in_evaluation_mode, inference_context
from equipool.leave_one_out.newton import newton_changes
from equipool.leave_one_out.removals import Removals, gather_removals
from equipool.sets import Sets
from equipool.solution import warn_of
from equipool.steps import ToTolerance

UNSOLVED = {
    "newton": "leave an energy that does not curve upwards at y, so that their change is NaN: use "
    'method="exact"',
    "exact": "have searches that have not converged: give the layer more steps",
}
ELEMENTS_AT_ONCE = 1 << 17  # of sets that lack a removal

# A search that starts within the tolerance must not stop there: it goes on to this part of it.
PRECISION = 1e-3

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Influence:
    """The result of `influence`. Rows are elements in the shape and order of the given x: `[N]`, or
    `[B, L]` for a padded batch; the rows of a nested tensor are those of its values. With `groups`
    there is one row per set and group instead."""

    y: Tensor
    """`[B, K]` the outputs."""

    change: Tensor
    """`[rows, K]` the output minus the output without the element. Zero for padding, NaN for sets
    that are not finite and where `solved` is False by Newton's method."""

    effect: Tensor | None
    """`[rows, ...]` the function of the output minus that of the output without the element:
    positive if the element raises it. None without a function."""

    converged: Tensor
    """`[B]` whether the layer's search reached the tolerance of its `steps`."""

    solved: Tensor
    """`[rows]` by Newton's method, whether the energy without the element curves upwards at y (its
    Hessian is positive definite); by exact searches, whether the search reached the tolerance.
    False for padding."""

    set_index: Tensor
    """`[rows]` the set of each row; -1 for padding."""

    group_index: Tensor | None
    """`[rows]` the group of each row, if groups were given. Rows are sorted by set, then group."""

    @property
    def score(self) -> Tensor:
        """`[rows]` one number per row: the effect if it is one, else the norm of the effect, or of
        the change without a function."""
        values = self.change if self.effect is None else self.effect
        rows = self.set_index.shape
        values = values.double().reshape(*rows, values.shape[len(rows) :].numel())
        if self.effect is not None and values.shape[-1] == 1:
            return values.squeeze(-1)
        return torch.linalg.vector_norm(values, dim=-1)

    def ranked(self, num: int | None = None, of_set: int | None = None) -> Tensor:
        """The numbers of the rows, of x's first two dimensions taken as one for a padded batch, in
        the order of the score's absolute value, largest first; rows without a score are left out.

        Args:
            num: how many at most. Default: all.
            of_set: the set whose rows to rank. Default: all sets.
        """
        score, sets = self.score.flatten().abs(), self.set_index.flatten()
        wanted = (sets >= 0) & ~score.isnan()
        if of_set is not None:
            wanted &= sets == of_set
        (rows,) = wanted.nonzero(as_tuple=True)
        order = torch.argsort(score[rows], descending=True, stable=True)
        return rows[order[:num]]

    def table(
        self, num: int | None = None, of_set: int | None = None
    ) -> list[tuple[int, int, float]]:
        """The ranked rows: the set, the element's number in x (in its set for a padded batch) or
        the group, and the score. The arguments are those of `ranked`."""
        scores, sets = self.score.flatten(), self.set_index.flatten()
        rows = self.ranked(num, of_set)
        names = (
            rows % self.set_index.shape[-1] if self.group_index is None else self.group_index[rows]
        )
        return list(zip(sets[rows].tolist(), names.tolist(), scores[rows].tolist(), strict=True))


def influence(
    layer: EquilibriumAggregation,
    x: Tensor,
    index: Tensor | Sets | None = None,
    *,
    ptr: Tensor | None = None,
    mask: Tensor | None = None,
    dim_size: SupportsIndex | None = None,
    weight: Tensor | None = None,
    function: Function | None = None,
    groups: Tensor | None = None,
    method: Literal["newton", "exact"] | None = None,
) -> Influence:
    r"""What each element contributes to the output of its set, and to a function of it: the value
    with the element minus the value without it.

    `"newton"` takes one Newton step from y, on the energy without the element, for all elements of
    all sets at once. At a minimum that is

    $$y - y_{-i} \approx -(H - H_i)^{-1} \nabla_y F(x_i, y),$$

    where $H$ is the Hessian of $R + \sum F$ and $H_i$ the element's part of it. The factor of
    `scaling="log"` multiplies the whole energy, so it does not move the minimum and cancels. With
    `"mean"` and `"log-mean"` the number of elements weighs R against F, which is taken into
    account. `"exact"` searches for the minimum without each element, beginning at y, with the
    layer's solver and steps.

    With the solver `Exact` searches are cheap, and one Newton step may be far off where penalties
    are narrow: there the default is `"exact"`. It reads a set of N elements N times.

    Both give the difference between two minima, with the element and without it. The remaining
    error of the layer's search does not count as a change. Both require a search that has
    converged: sets for which it has not are counted in a warning and marked in
    `Influence.converged`. Removing the only element of a set leaves an empty set, whose output is
    the start. The layer is used in evaluation mode and is not changed; nothing is recorded for
    gradients, and autocast is off.

    Args:
        layer: the trained layer.
        x: elements; `index`, `ptr`, `mask`, `dim_size` and `weight` as in the layer's call.
            An element is left out with all of its weight; one of weight 0 is treated as padding.
        function: maps outputs `[rows, K]` to `[rows, ...]`, each row by itself: a head in
            evaluation mode, say, or one of its logits.
        groups: an integer for each element: the elements of a set that have the same one are left
            out together, and the result has one row per set and group.
        method: `"newton"` or `"exact"`. Default: `"exact"` with the solver `Exact`, else
            `"newton"`.

    Example:
        >>> mean = equipool.potentials.FrechetMean(torch.nn.PairwiseDistance())
        >>> layer = equipool.EquilibriumAggregation(
        ...     1, 1, potential=mean, regularizer=0, scaling="mean", solver=equipool.Newton()
        ... )
        >>> found = influence(layer, torch.tensor([[1.0], [2.0], [6.0]]))
        >>> found.change  # the mean is 3; without the last it would be 1.5
        tensor([[-1.0000],
                [-0.5000],
                [ 1.5000]])
    """
    check_part("layer", layer, EquilibriumAggregation, "EquilibriumAggregation(3, 8)")
    if method is None:
        method = "exact" if layer.solver.in_one_step else "newton"
    if method not in UNSOLVED:
        raise ValueError(f"method is {method!r}, expected one of {list(UNSOLVED)}")
    refuse_sharded("influence")
    layer = in_evaluation_mode(layer)
    with inference_context(x.device):
        x = x.clone() if x.is_inference() else x
        solution = layer.solve(x, index, ptr=ptr, mask=mask, dim_size=dim_size, weight=weight)
        removals = gather_removals(x, index, ptr, mask, dim_size, weight, groups)
        set_of, emptied = removals.set_of, removals.left == 0
        finite = solution.finite[set_of]
        # Sets that are not finite are at zero, with elements of zero.
        y = torch.where(solution.finite.unsqueeze(-1), solution.y, 0)
        y = y.to(torch.promote_types(y.dtype, torch.float32))
        removals.x.masked_fill_(~solution.finite[removals.sets.index].unsqueeze(-1), 0)
        changes = newton_changes if method == "newton" else exact_changes
        change, solved = changes(layer, removals, y)
        empty = layer.solve(removals.x[:0], ptr=torch.zeros_like(removals.sets.ptr)).y
        change = torch.where(emptied.unsqueeze(-1), (y - empty)[set_of], change)
        change = torch.where(finite.unsqueeze(-1), change, torch.nan).to(x.dtype)
        effect = None
        if function is not None:
            without = call_on_rows(function, solution.y[set_of] - change)
            effect = call_on_rows(function, solution.y)[set_of] - without
    solved = solved | emptied
    warn_of(
        ~solution.converged & solution.finite,
        "sets have not converged, so their influence is not that of a minimum: search longer, "
        "layer.steps = ToTolerance(1e-3, max_steps=1000), or train with equipool.converging()",
    )
    warn_of(~solved[finite], f"removals {UNSOLVED[method]}")
    shape = (x.values() if x.is_nested else x).shape[:-1]

    def place(values: Tensor, padding: float = 0) -> Tensor:
        """Put rows in the order of the given x, unless they are those of groups."""
        if groups is not None:
            return values
        rows = values.new_full((shape.numel(), *values.shape[1:]), padding)
        rows[removals.positions] = values
        return rows.view(*shape, *values.shape[1:])

    return Influence(
        y=solution.y,
        change=place(change),
        effect=None if effect is None else place(effect),
        converged=solution.converged,
        solved=place(solved & finite),
        set_index=place(set_of, padding=-1),
        group_index=removals.group_of,
    )


def exact_changes(
    layer: EquilibriumAggregation, removals: Removals, y: Tensor
) -> tuple[Tensor, Tensor]:
    """The change `[P, K]` of each set's minimum by the removal, and whether the search reached the
    layer's tolerance, `[P]`. The minimum of the whole set is sought from y as well, so that what
    the layer's own search left does not count as a change."""
    tolerance = layer.steps.tolerance
    steps = ToTolerance(PRECISION * tolerance, layer.steps.max_steps)
    whole = layer.solve(removals.x, removals.sets, start=y, steps=steps).y
    changes, reached = [y.new_zeros(0, y.shape[-1])], [removals.set_of[:0] > 0]
    for start, stop in removals.blocks(removals.left, ELEMENTS_AT_ONCE):
        set_of = removals.set_of[start:stop]
        found = layer.solve(*removals.remainders(start, stop), start=y[set_of], steps=steps)
        changes.append(whole[set_of] - found.y)
        reached.append(found.converged | (found.residual <= tolerance))
    return torch.cat(changes), torch.cat(reached)
