"""Live sets: elements are added, removed and replaced, and only changed sets are solved again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, SupportsIndex

import torch
from torch import Tensor, nn

from equipool.aggregation import EquilibriumAggregation
from equipool.checks import check_part
from equipool.distributed import refuse_sharded
from equipool.inference import in_evaluation_mode, inference_context
from equipool.layer_identity import LayerIdentity
from equipool.sets import INTEGERS, Sets, check_like, check_range, gather_positions, gather_sets
from equipool.solver_state import put_rows, take_rows
from equipool.steps import Steps

__all__ = ["LiveSets", "LiveSolution"]

Numbers = Tensor | Sequence[int] | int


class LiveSolution(NamedTuple):
    """The outputs of live sets, and how the last solve of each went."""

    y: Tensor
    """`[B, K]` the outputs."""

    residual: Tensor
    """`[B]` largest component of the energy's gradient at y, in absolute value."""

    converged: Tensor
    """`[B]` whether the residual is within the tolerance."""

    num_steps: Tensor
    """`[B]` steps of the last solve."""

    error_bound: Tensor
    """`[B]` the largest possible distance from y to the minimum, as `Solution.error_bound`."""


class LiveSets:
    r"""Add, remove and replace elements of sets, and read the outputs at any time.

    An edit solves nothing. It marks the sets that it touches; reading `y` or `solution` solves
    those sets and no others, from their last output on, until no component of the gradient exceeds
    the tolerance. A thousand edits in a row cost one solve. The residual is computed from the set
    as it is now, so errors do not add up over edits. If the energy has several minima, a set may
    stay in one that a solve from scratch would not find. An edit copies the sets that it touches.

    The layer is used in evaluation mode, no gradients are recorded, and autocast has no effect.

    Args:
        layer: the layer. Once it has changed, the next read solves all sets from scratch.
        x: elements; `index`, `ptr`, `mask`, `dim_size` and `weight` as in the layer's call.
            They get the ids 0, 1, 2, ... in the order in which they are given, padding left out.
            The number of sets is fixed.
        steps: how long to search, a rule with a tolerance such as `ToTolerance(1e-4)`. Default: the
            layer's own, which must have one.

    Example:
        >>> mean = equipool.potentials.FrechetMean(torch.nn.PairwiseDistance())
        >>> layer = equipool.EquilibriumAggregation(
        ...     1, 1, potential=mean, regularizer=0, scaling="mean", solver=equipool.Newton()
        ... )
        >>> x, steps = torch.tensor([[1.0], [2.0]]), equipool.ToTolerance(1e-6)
        >>> sets = equipool.live.LiveSets(layer, x, steps=steps)
        >>> ids = sets.add(torch.tensor([[6.0]]))
        >>> sets.y
        tensor([[3.0000]])
        >>> sets.remove(ids)
        >>> sets.y, sets.solution.converged
        (tensor([[1.5000]]), tensor([True]))
    """

    def __init__(
        self,
        layer: EquilibriumAggregation,
        x: Tensor,
        index: Tensor | Sets | None = None,
        *,
        ptr: Tensor | None = None,
        mask: Tensor | None = None,
        dim_size: SupportsIndex | None = None,
        weight: Tensor | None = None,
        steps: Steps | None = None,
    ) -> None:
        check_part("layer", layer, EquilibriumAggregation, "EquilibriumAggregation(3, 8)")
        self.layer = layer
        self._own_steps = steps
        _ = self._steps  # is checked
        with inference_context(x.device):
            positions, sets = gather_positions(x, index, ptr=ptr, mask=mask, dim_size=dim_size)
            flat = (x.values() if x.is_nested else x).detach().flatten(0, -2)
            layer._check_fits(flat)
            ids = positions.argsort().argsort()  # the order in which they are given
            self._weighted = weight is not None
            if weight is not None and weight.is_nested:
                weight = weight.values()
            held = self._join(flat, None if weight is None else weight.detach().flatten())
            self._like = flat[:0].clone()
            self._set(held[positions], ids.cpu(), sets.counts.cpu(), len(ids))
        self._identity = LayerIdentity(layer, outputs=True)

    def _set(self, x: Tensor, ids: Tensor, counts: Tensor, next_id: int) -> None:
        """Hold these elements, in set order; nothing is solved yet."""
        # Of each set, [n, C]; with weights [n, C + 1], the last channel.
        self._x = list(x.split(counts.tolist()))
        self._ids = list(ids.split(counts.tolist()))  # of each set, [n], ascending, on the CPU
        owners = torch.arange(len(counts)).repeat_interleave(counts)
        self._set_of = dict(zip(ids.tolist(), owners.tolist(), strict=True))
        self._next_id = next_id
        self._solution: LiveSolution | None = None
        self._changed: set[int] = set()

    @property
    def num_sets(self) -> int:
        """The number of sets."""
        return len(self._x)

    @property
    def y(self) -> Tensor:
        """`[B, K]` the outputs. The output of an empty set is the layer's start; that of a set with
        an element that is not finite is NaN until the element is removed."""
        return self.solution.y

    @property
    def solution(self) -> LiveSolution:
        """The outputs and how they were found. Solves the sets that have changed."""
        if not self._identity.holds():
            self._identity = LayerIdentity(self.layer, outputs=True)
            self.refresh()
        if self._solution is None:
            self._solution = self._solve(range(self.num_sets), None)
        elif self._changed:
            numbers = sorted(self._changed)
            rows = torch.tensor(numbers, device=self._like.device)
            with inference_context(self._like.device):
                new = self._solve_from(numbers, self._solution.y[rows])
                self._solution = put_rows(self._solution, rows, new)
        self._changed.clear()
        return self._solution

    def add(self, x: Tensor, index: Numbers | None = None, weight: Tensor | None = None) -> Tensor:
        """Add elements.

        Args:
            x: new elements, `[n, C]`.
            index: the set of each, `[n]`, or one number for all of them. Not needed if there is one
                set. It is read on the CPU.
            weight: the weight of each, `[n]`, if the first elements have weights. Default: 1.

        Returns:
            `[n]` the ids of the new elements, on the CPU. An id is never used again.
        """
        self._check_new(x)
        if index is None and self.num_sets != 1:
            raise ValueError(
                f"index is None, expected the set of each element: there are {self.num_sets} sets"
            )
        owners = _as_numbers("index", 0 if index is None else index).expand(len(x))
        if len(owners):
            check_range(int(owners.min()), int(owners.max()), self.num_sets)
        x = self._join(x, weight)
        ids = torch.arange(self._next_id, self._next_id + len(x))
        self._next_id += len(x)
        self._set_of |= zip(ids.tolist(), owners.tolist(), strict=True)
        with inference_context(x.device):
            for number, rows in _by_set(owners):
                more = torch.cat([self._x[number], x[rows.to(x.device)]])
                self._put(number, more, torch.cat([self._ids[number], ids[rows]]))
        return ids

    def remove(self, ids: Numbers) -> None:
        """Remove elements by their ids. Their features are overwritten at once; their influence on
        y ends with the next solve, up to the tolerance."""
        ids, owners = self._read_ids(ids)
        with inference_context(self._like.device):
            for number, rows in _by_set(owners):
                kept = torch.isin(self._ids[number], ids[rows], invert=True)
                self._put(number, self._x[number][kept.to(self._like.device)],
                          self._ids[number][kept])  # fmt: skip
        for one in ids.tolist():
            del self._set_of[one]

    def replace(self, ids: Numbers, x: Tensor) -> None:
        """Replace the features of elements, which keep their ids, sets and weights, by
        `x [n, C]`."""
        ids, owners = self._read_ids(ids)
        self._check_new(x)
        if len(x) != len(ids):
            raise ValueError(f"x has {len(x)} elements, expected {len(ids)}: one per id")
        with inference_context(x.device):
            for number, rows in _by_set(owners):
                places = torch.searchsorted(self._ids[number], ids[rows])
                self._x[number][places.to(x.device), : x.shape[1]] = x[rows.to(x.device)]
                self._changed.add(number)

    def elements(self) -> tuple[Tensor, Tensor, Tensor]:
        """The elements `x [N, C]` in set order, the set `index [N]` and the `ids [N]` of each."""
        counts = torch.tensor([len(ids) for ids in self._ids], dtype=torch.long)
        index = torch.arange(self.num_sets).repeat_interleave(counts).to(self._like.device)
        ids = torch.cat([torch.zeros(0, dtype=torch.long), *self._ids])
        return self._elements(self._x)[0], index, ids

    @property
    def weight(self) -> Tensor | None:
        """The weights `[N]` of the elements in set order; None if they have none."""
        return self._elements(self._x)[1]

    def _elements(self, held: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        """The elements of some sets, and their weights."""
        if not self._weighted:
            return torch.cat([self._like, *held]), None
        both = torch.cat([nn.functional.pad(self._like, (0, 1)), *held])
        return both[:, :-1], both[:, -1]

    def _join(self, x: Tensor, weight: Tensor | None) -> Tensor:
        """Elements as they are held, `[n, C]`, with a channel more for their weights."""
        if not self._weighted:
            if weight is not None:
                raise ValueError("weight is given, expected none, as for the first elements")
            return x
        weight = x.new_ones(len(x)) if weight is None else weight.to(x.dtype)
        gather_sets(x, weight=weight)  # checks it
        return torch.cat([x, weight.unsqueeze(-1)], -1)

    def refresh(self) -> None:
        """Let the next read solve all sets from scratch, at the layer's start. A changed layer is
        noticed without it, unless it was changed through `.data`."""
        self._solution = None

    def state_dict(self) -> dict[str, Tensor]:
        """Elements, ids and outputs, as tensors in their own memory. Changed sets are solved
        before."""
        next_id = torch.tensor(self._next_id)
        names = ("x", "index", "ids", "y", "next_id")
        state = dict(zip(names, (*self.elements(), self.y.clone(), next_id), strict=True))
        return state if self.weight is None else {**state, "weight": self.weight.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Hold what `state_dict` gave instead, on the own device. Ids stay valid. All sets are
        solved from the outputs of the state, which takes one step if the layer is the same."""
        with inference_context(self._like.device):
            x = state["x"].to(self._like.device, copy=True)
            self._check_new(x)
            weight = state.get("weight")
            self._weighted = weight is not None
            x = self._join(x, None if weight is None else weight.to(x.device))
            counts = torch.bincount(state["index"].cpu(), minlength=len(state["y"]))
            self._set(x, state["ids"].cpu(), counts, int(state["next_id"]))
            self._solution = self._solve_from(range(self.num_sets), state["y"].to(x))

    @property
    def _steps(self) -> Steps:
        """A rule that stops at a tolerance."""
        steps = self.layer.steps if self._own_steps is None else self._own_steps
        if steps.budget(training=False).stop_at is None and not self.layer.solver.in_one_step:
            raise ValueError(
                f"steps is {steps!r}, expected a rule that stops at a tolerance, so that outputs "
                "do not depend on earlier edits: pass steps=ToTolerance(1e-3, max_steps=1000)"
            )
        return steps

    def _put(self, number: int, x: Tensor, ids: Tensor) -> None:
        """Hold other elements of a set, and overwrite the memory of the old ones."""
        self._x[number].zero_()
        self._x[number], self._ids[number] = x, ids
        self._changed.add(number)

    def _check_new(self, x: Tensor) -> None:
        check_like("x", x, self._like, None, (self._like.dtype,))
        if x.dim() != 2:
            raise ValueError(f"x has shape {list(x.shape)}, expected [n, {self._like.shape[1]}]")
        self.layer._check_fits(x)

    def _read_ids(self, ids: Numbers) -> tuple[Tensor, Tensor]:
        """Ids `[n]` of elements that are there, each named once, and the sets of these."""
        ids = _as_numbers("ids", ids)
        unknown = [one for one in ids.tolist() if one not in self._set_of]
        if unknown:
            raise KeyError(f"ids has {unknown[:3]}, expected ids of elements that are there")
        if len(ids.unique()) < len(ids):
            raise ValueError(f"ids is {ids.tolist()}, expected each id once")
        owners = [self._set_of[one] for one in ids.tolist()]
        return ids, torch.tensor(owners, dtype=torch.long)

    def _solve_from(self, numbers: Sequence[int], y: Tensor) -> LiveSolution:
        """Solve some sets from y. Those that do not converge may have begun too far away, where an
        element had taken them that is gone: they are solved from scratch too."""
        found = self._solve(numbers, y)
        (rows,) = (~found.converged).nonzero(as_tuple=True)
        if rows.shape[0] == 0:
            return found
        scratch = self._solve([numbers[row] for row in rows.tolist()], None)
        better = ~(found.residual[rows] <= scratch.residual)
        return put_rows(found, rows[better], take_rows(scratch, better.nonzero().squeeze(-1)))

    def _solve(self, numbers: Sequence[int], y: Tensor | None) -> LiveSolution:
        """Solve some sets, given by ascending numbers, from y or from scratch."""
        refuse_sharded("the solve of LiveSets")
        with inference_context(self._like.device):
            held = [self._x[number] for number in numbers]
            x, weight = self._elements(held)
            ptr = torch.tensor([0, *map(len, held)], device=x.device).cumsum(0)
            _, sets = gather_sets(x, ptr=ptr, weight=weight)
            if y is not None:  # an empty set has no energy: it stays where it starts
                y = torch.where((sets.real(sets.counts) > 0).unsqueeze(-1), y, torch.nan)
            layer = in_evaluation_mode(self.layer)
            found = layer.solve(x, ptr=ptr, weight=weight, start=y, steps=self._steps)
        return LiveSolution(
            found.y, found.residual, found.converged, found.num_steps, found.error_bound
        )


def _as_numbers(name: str, values: Numbers) -> Tensor:
    """Whole numbers as a tensor on the CPU, `[n]`."""
    numbers = torch.as_tensor(values, device="cpu").reshape(-1)
    if len(numbers) and numbers.dtype not in INTEGERS:
        raise TypeError(f"{name} has dtype {numbers.dtype}, expected integers")
    return numbers.long()


def _by_set(owners: Tensor) -> list[tuple[int, Tensor]]:
    """Each set among the sets `[N]` of elements, and the elements of it."""
    numbers, counts = owners.unique(return_counts=True)
    rows = owners.argsort(stable=True).split(counts.tolist())
    return list(zip(numbers.tolist(), rows, strict=True))
