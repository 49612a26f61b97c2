"""A search that stops at a tolerance as CUDA graphs: one to begin, one that takes a few steps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from equipool.cuda import own_workspaces, side_stream
from equipool.descent import Descent, Search, outputs_of
from equipool.replay.capacity import Capacity
from equipool.replay.graphs import Memory, PaddedBatch, recording
from equipool.sets import Sets
from equipool.solver_state import copy_into, in_own_memory

LARGEST_STRIDE = 10  # steps between two looks at whether all sets have stopped


class StoppingGraph:
    """The search of a batch until every set has reached the tolerance, recorded. No gradients."""

    def __init__(
        self,
        capacity: Capacity,
        search: Callable[[Tensor, Sets], Search],
        like: Tensor,
        memory: Memory,
    ) -> None:
        self.memory = memory
        self._begin, self._steps = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.inference_mode(False), torch.no_grad():
            self._batch = PaddedBatch(capacity, like)
            with own_workspaces(), side_stream():
                self._descent, _ = self._advance(search(self._batch.x, self._batch.sets()))
            with own_workspaces():
                with recording(self._begin, memory):
                    self._search = search(self._batch.x, self._batch.sets())
                    copy_into(_begin(self._search), self._descent)
                with recording(self._steps, memory):
                    self._descent, self._moving = self._advance(self._search, self._descent)
        self._strides = self._search.budget.num_steps // stride(self._search.budget.num_steps)

    def _advance(self, search: Search, descent: Descent | None = None) -> tuple[Descent, Tensor]:
        """Take a few steps in place; whether a set is still moving."""
        if descent is None:
            descent = in_own_memory(_begin(search))
        num_steps = stride(search.budget.num_steps)
        copy_into(search.run(descent, num_steps, search.budget.stop_at), descent)
        return descent, descent.moving.any()

    @torch.no_grad()
    def run(self, x: Tensor, sets: Sets) -> tuple[tuple[Tensor, ...], int]:
        """The outputs of a batch, and the memory's version."""
        with self.memory.in_use():
            self._batch.fill(x, sets)
            version = self.memory.run(self._begin)
            for _ in range(self._strides):
                version = self.memory.run(self._steps)
                if not bool(self._moving):
                    break
            outputs = outputs_of(self._descent.finish())
            return tuple(part[: sets.num_rows].clone() for part in outputs), version


def _begin(search: Search) -> Descent:
    """The state before the first step, in the form that it has after a step."""
    descent = search.begin()
    counted = descent.with_rows()
    kept = counted.squared_gradient if search.keep.squared_gradient else None
    return counted._replace(squared_gradient=kept)


def stride(num_steps: int) -> int:
    """Steps to take at a time, so that whole strides make up the number.

    Example:
        >>> stride(200), stride(35), stride(199)
        (10, 7, 1)
    """
    return max(n for n in range(1, LARGEST_STRIDE + 1) if num_steps % n == 0)
