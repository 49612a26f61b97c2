"""A whole training step as one CUDA graph."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from equipool.private_torch import clear_workspaces


def capture_step(
    step: Callable[[], object], warmup: int = 3, pool: Any = None
) -> Callable[[], object]:
    """Record a step in a CUDA graph: one launch instead of a thousand.

    On small batches, launching the kernels takes longer than running them. A captured step reads
    and writes the same memory at every call: copy a new batch into the input tensors, then call.

    The step must not look at values on the host and must always have the same shapes. For sets of
    changing sizes that means a fixed capacity: `x [capacity, C]`, `index [capacity]` and a
    `mask [capacity]` that is True for the real elements, with `dim_size` given; elements that are
    not real change nothing. An optimiser needs `capturable=True`, and gradients are set to None or
    zero inside the step.

    Args:
        step: takes nothing, returns anything; run `warmup` times before it is recorded.
        warmup: the number of runs before the recording, for one-time setup. They train, too.
        pool: memory that steps captured with the same `torch.cuda.graph_pool_handle()` share.
            Each of them overwrites what the others returned.

    Returns:
        A function that runs the step on what its input tensors hold now. It returns what the step
        returned, its tensors overwritten with the new values.

    Example:
        A step with model, loss, backward and optimiser, and a loop that feeds it:

        ```python
        x, index = torch.zeros(4096, 16, device="cuda"), torch.zeros(4096, device="cuda").long()
        mask, target = torch.zeros(4096, device="cuda").bool(), torch.zeros(256, device="cuda")
        optimizer = torch.optim.Adam(model.parameters(), capturable=True)

        def step():
            optimizer.zero_grad(set_to_none=True)
            y = layer(x, index, mask=mask, dim_size=256)
            loss = (head(y).squeeze(-1) - target).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = equipool.cuda.capture_step(step)
        for batch in batches:
            n = len(batch.x)
            x[:n].copy_(batch.x)
            index[:n].copy_(batch.index)
            mask.fill_(False)
            mask[:n] = True
            target.copy_(batch.target)
            loss = step()
        ```
    """
    if not torch.cuda.is_available():
        raise RuntimeError("capture_step needs a CUDA device: call the step itself instead")
    with side_stream():
        for _ in range(max(warmup, 1)):
            step()
    # Graphs of autograd that are still alive tie gradients to the stream they were made on.
    gc.collect()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with own_workspaces(), no_garbage_collection(), torch.cuda.graph(graph, pool=pool):
        output = step()

    def replay() -> object:
        graph.replay()
        return output

    return replay


@contextmanager
def side_stream() -> Iterator[None]:
    """Run the block on a stream of its own, as a recording does afterwards."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


@contextmanager
def own_workspaces() -> Iterator[None]:
    """A graph recorded inside has scratch memory of its own for matrix products.

    torch keeps that memory by stream, and records all graphs on one: graphs that run at the same
    time would write to each other's. Enter this after a warm-up: torch has 32 streams and hands
    them out in turn, so the warm-up may have used the same one. The graph would then read memory
    that is not its own and is freed while the graph is alive.
    """
    clear_workspaces()
    try:
        yield
    finally:
        clear_workspaces()


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Pause garbage collection: it may free another graph, which would abort the recording."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
