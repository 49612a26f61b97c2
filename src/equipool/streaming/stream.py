"""Sets whose elements change, with outputs that follow."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Self, SupportsIndex

import torch
from torch import Tensor

from equipool.aggregation import EquilibriumAggregation
from equipool.checks import check_elements, refuse_with
from equipool.inference import inference_context
from equipool.layer_identity import LayerIdentity
from equipool.layouts import gather_sets
from equipool.rows import put_rows, take_rows
from equipool.sets import Sets, make_sets
from equipool.steps import Steps
from equipool.streaming.arguments import Numbers, check_new, in_given_order, read_ids, read_index
from equipool.streaming.entries import Entries, entries_of
from equipool.streaming.file import Saved, fingerprint, read, write
from equipool.streaming.solving import (
    Solved,
    check_steps,
    elements_like,
    solve,
)
from equipool.streaming.store import Store


@dataclass(frozen=True, eq=False)
class StreamCheck:
    """How the outputs of a stream compare with a solve from scratch, for each set. NaN for a set
    that is not finite."""

    distance: Tensor
    """`[B]` Euclidean distance between the two outputs."""

    error_bound: Tensor | None
    """`[B]` the largest distance that the two solves allow, the sum of their error bounds; None if
    the energy is not known to be convex."""

    energy: Tensor
    """`[B]` the energy of the stream's output minus that of the solve from scratch."""

    steps: Tensor
    """`[B]` steps of the solve from scratch."""

    def __repr__(self) -> str:
        distance = self.distance.nan_to_num(nan=0.0)
        text = f"StreamCheck(sets={distance.shape[0]}"
        if distance.numel():
            text += f", largest distance={float(distance.max()):.3g}"
        if self.error_bound is not None:
            text += f", within the bound={int((distance <= self.error_bound).sum())}"
        return text + ")"


class Stream:
    r"""Live sets: add, remove and replace elements, and read the outputs at any time.

    An edit solves nothing. It marks the sets that it touches; reading `y` (or another result)
    solves those sets and no others, from their last output on, until no component of the gradient
    exceeds the tolerance. A thousand edits in a row cost one solve. The residual is computed from
    the set as it is now, so errors do not add up over edits. If the energy is convex, `error_bound`
    bounds the distance to the minimum; if it has several minima, a set may stay in one that a solve
    from scratch would not find: `check` measures that.

    No gradients are recorded, and autocast has no effect.

    Args:
        layer: the layer. Its parameters are watched: once they have changed, the next read solves
            all sets from scratch.
        x: elements; `index`, `ptr`, `mask` and `dim_size` describe the sets as in the layer's call.
            They get the ids 0, 1, 2, ... in the order in which they are given, padding left out.
            None for `dim_size` empty sets.
        dim_size: the number of sets, which is fixed.
        steps: how long to search, a rule with a tolerance such as `ToTolerance(1e-4)`. Default: the
            layer's own, which must have one.

    Example:
        >>> layer = equipool.closed_form.mean(1)
        >>> stream = Stream(layer, torch.tensor([[1.0], [2.0]]), steps=equipool.ToTolerance(1e-6))
        >>> ids = stream.add(torch.tensor([[6.0]]))
        >>> stream.y
        tensor([[3.]])
        >>> stream.remove(ids)
        >>> stream.y, stream.converged
        (tensor([[1.5000]]), tensor([True]))
    """

    def __init__(
        self,
        layer: EquilibriumAggregation,
        x: Tensor | None = None,
        index: Tensor | Sets | None = None,
        *,
        ptr: Tensor | None = None,
        mask: Tensor | None = None,
        dim_size: SupportsIndex | None = None,
        steps: Steps | None = None,
    ) -> None:
        self.layer = layer
        self._own_steps = steps
        check_steps(self._steps)
        if x is None:
            refuse_with("dim_size without x", index=index, ptr=ptr, mask=mask)
            if dim_size is None:
                raise ValueError("x and dim_size are None, expected one of them")
            x = elements_like(layer)
            index = torch.zeros(0, dtype=torch.long, device=x.device)
        check_elements(x)
        with inference_context(x.device):
            ordered, sets = gather_sets(x, index, ptr=ptr, mask=mask, dim_size=dim_size)
            layer.check_fits(ordered)
            self._store = Store(sets.num_sets, ordered)
            self._store.add(*in_given_order(x, index, mask, ordered, sets))
            self._changed = torch.zeros(self.num_sets, dtype=torch.bool)
        self._solved: Solved | None = None
        self._identity = LayerIdentity(layer, outputs=True)

    @property
    def num_sets(self) -> int:
        """The number of sets."""
        return self._store.counts.shape[0]

    @property
    def counts(self) -> Tensor:
        """`[B]` the number of elements of each set, on the CPU."""
        return self._store.counts.clone()

    @property
    def y(self) -> Tensor:
        """`[B, K]` the outputs. The output of an empty set is the layer's start; that of a set with
        an element that is not finite is NaN until the element is removed."""
        return self._update().y.to(self._store.x.dtype)

    @property
    def residual(self) -> Tensor:
        """`[B]` largest component of the energy's gradient at y, in absolute value."""
        return self._update().residual

    @property
    def converged(self) -> Tensor:
        """`[B]` whether the residual is within the tolerance."""
        return self._update().converged

    @property
    def error_bound(self) -> Tensor | None:
        """`[B]` the largest possible distance from y to the minimum, as `Solution.error_bound`;
        None if the energy is not known to be convex."""
        return self._update().error_bound

    @property
    def steps(self) -> Tensor:
        """`[B]` steps of the last solve of each set."""
        return self._update().steps

    def add(self, x: Tensor, index: Numbers | None = None) -> Tensor:
        """Add elements.

        Args:
            x: new elements, `[n, C]`.
            index: the set of each, `[n]`, or one number for all of them. Not needed if there is one
                set. It is read on the CPU.

        Returns:
            `[n]` the ids of the new elements, on the CPU. An id is never used again.
        """
        check_new(x, self._store.x)
        self.layer.check_fits(x)
        owners = read_index(index, x.shape[0], self.num_sets)
        with self._context():
            ids = self._store.add(x.detach(), owners)
        self._changed[owners] = True
        return ids

    def remove(self, ids: Numbers) -> None:
        """Remove elements by their ids. Their features are overwritten at once; their influence on
        y ends with the next solve, up to the tolerance."""
        entries = read_ids(ids, self._store.entries)
        self._changed[self._store.entries.owner[entries]] = True
        with self._context():
            self._store.remove(entries)

    def replace(self, ids: Numbers, x: Tensor) -> None:
        """Replace the features of elements, which keep their ids and sets, by `x [n, C]`."""
        entries = read_ids(ids, self._store.entries)
        check_new(x, self._store.x)
        self.layer.check_fits(x)
        if x.shape[0] != entries.shape[0]:
            raise ValueError(
                f"x has {x.shape[0]} elements, expected {entries.shape[0]}: one per id"
            )
        self._changed[self._store.entries.owner[entries]] = True
        with self._context():
            self._store.replace(entries, x.detach())

    def elements(self) -> tuple[Tensor, Tensor, Tensor]:
        """The elements `x [N, C]` in set order, the set `index [N]` and the `ids [N]` of each."""
        return self._store.elements(torch.arange(self.num_sets))

    def refresh(self) -> None:
        """Let the next read solve all sets from scratch, at the layer's start. Changed parameters
        are noticed without it, unless they were changed through `.data`."""
        self._solved = None

    def check(self) -> StreamCheck:
        """Solve all sets from scratch and compare. The stream keeps its own outputs; call `refresh`
        to take over those from scratch."""
        own, bound = self._update(), None
        with self._context():
            scratch = self._solve(torch.arange(self.num_sets), None)
        if own.error_bound is not None and scratch.error_bound is not None:
            bound = own.error_bound + scratch.error_bound
        distance = torch.linalg.vector_norm(own.y - scratch.y, dim=-1)
        return StreamCheck(distance, bound, own.energy - scratch.energy, scratch.steps)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write elements, ids and outputs to a safetensors file. Changed sets are solved before.
        Needs safetensors."""
        solved, (x, _, ids) = self._update(), self.elements()
        results = {name: rows for name, rows in solved._asdict().items() if rows is not None}
        content = Saved(x, ids, self._store.counts, self._store.entries.uses, results)
        write(path, content, fingerprint(self.layer, self._steps))

    @classmethod
    def load(
        cls,
        layer: EquilibriumAggregation,
        path: str | os.PathLike[str],
        *,
        steps: Steps | None = None,
    ) -> Self:
        """Read what `save` wrote. All ids stay valid. If the layer, its parameters or `steps`
        differ from those at the time of saving, the next read solves all sets from scratch.

        Args:
            layer: the layer. Elements are put on its device.
            path: the file.
            steps: as for `Stream`.
        """
        device = elements_like(layer).device
        with inference_context(device):
            content, made_by = read(path, device)
            num_sets = content.counts.shape[0]
            none = content.x.new_empty(0, dtype=torch.long)
            stream = cls(layer, content.x[:0], none, dim_size=num_sets, steps=steps)
            entries = Entries.restore(content.uses, content.ids)
            stream._store = Store(num_sets, content.x, entries)
            index = torch.arange(num_sets).repeat_interleave(content.counts)
            stream._store.put(content.x, index, entries_of(content.ids))
            if made_by == fingerprint(layer, stream._steps):
                stream._solved = Solved(**content.results)
        return stream

    def __repr__(self) -> str:
        changed = self.num_sets if self._solved is None else int(self._changed.sum())
        elements = int(self._store.counts.sum())
        return f"Stream(sets={self.num_sets}, elements={elements}, to solve={changed})"

    @property
    def _steps(self) -> Steps:
        return self.layer.steps if self._own_steps is None else self._own_steps

    def _context(self) -> AbstractContextManager[None]:
        return inference_context(self._store.x.device)

    def _update(self) -> Solved:
        """Solve the sets that have changed."""
        if not self._identity.holds():
            self.refresh()
        if self._solved is not None and not bool(self._changed.any()):
            return self._solved
        with self._context():
            if self._solved is None:
                self._solved = self._solve(torch.arange(self.num_sets), None)
            else:
                sets = self._changed.nonzero().squeeze(-1)
                rows = sets.to(self._store.x.device)
                new = self._solve_from(sets, self._solved.y.index_select(0, rows))
                self._solved = put_rows(self._solved, rows, new)
            self._changed.zero_()
        self._identity = LayerIdentity(self.layer, outputs=True)
        return self._solved

    def _solve_from(self, numbers: Tensor, y: Tensor) -> Solved:
        """Solve some sets from y. Those that do not converge may have begun too far away, where an
        element had taken them that is gone: they are solved from scratch too."""
        found = self._solve(numbers, y)
        (rows,) = (~found.converged).nonzero(as_tuple=True)
        if rows.shape[0] == 0:
            return found
        scratch = self._solve(numbers[rows.cpu()], None)
        better = ~(found.residual[rows] <= scratch.residual)
        return put_rows(found, rows[better], take_rows(scratch, better.nonzero().squeeze(-1)))

    def _solve(self, numbers: Tensor, y: Tensor | None) -> Solved:
        """Solve some sets, given by ascending numbers, from y or from scratch."""
        x, index, _ = self._store.elements(numbers)
        counts = self._store.counts[numbers].to(x.device)
        sets = make_sets(index, counts, numbers.shape[0], padded=False)
        return solve(self.layer, self._steps, x, sets, y)
