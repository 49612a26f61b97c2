"""Fused loops for CPUs: numba compiles them on first use, threads run them over ranges of sets."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipool.ops.execution import kernels_are_on
from equipool.private_torch import is_dispatch_mode_active, is_transforming

BLOCK = 32  # channels that a loop takes at a time
RANGE = 1024  # elements in a range of sets, unless one set has more
SHORT = (torch.float32, torch.bfloat16, torch.float16)

logger = logging.getLogger("equipool")


@functools.cache
def _numba_is_installed() -> bool:
    if find_spec("numba") is None:
        logger.warning('numba is missing, so CPUs are slower: pip install "equipool[fast]"')
        return False
    return True


def fused_loops_serve(x: Tensor) -> bool:
    """Whether the loops can take this tensor: eagerly, on a CPU, in float32 or shorter."""
    usable = x.device.type == "cpu" and x.dtype in SHORT and kernels_are_on()
    if not usable or torch.compiler.is_compiling() or is_transforming():
        return False
    return not is_dispatch_mode_active() and _numba_is_installed()


def compiled(function: Any) -> Any:
    """Compile a loop on its first call. It may take NaN and infinity, and reorders no sum."""
    from numba import njit

    fastmath = {"contract", "arcp", "nsz", "afn"}
    options = {"fastmath": fastmath, "error_model": "numpy", "nogil": True}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # no folder can be written to
        return njit(**options)(function)


def ranges_of(counts: Tensor) -> list[tuple[int, int, int]]:
    """First set, last set + 1 and number of elements of each range; threads do not matter."""
    ends = counts.cumsum(0)
    total = int(ends[-1]) if ends.numel() else 0
    cuts = torch.searchsorted(ends, torch.arange(RANGE, max(total, RANGE), RANGE)) + 1
    cuts = torch.cat([cuts.new_zeros(1), cuts, cuts.new_tensor([counts.shape[0]])]).unique()
    sizes = torch.nn.functional.pad(ends, (1, 0))[cuts].diff()
    return list(zip(cuts[:-1].tolist(), cuts[1:].tolist(), sizes.tolist(), strict=True))


def run(kernel: Any, ranges: Sequence[tuple[int, int, int]], channels: int, *given: Any) -> None:
    """Call the kernel for each range of sets; its last arguments are the range's number, its sets
    and channels. Ranges with many elements are split over channels."""
    arrays = [one.detach().numpy() if isinstance(one, Tensor) else one for one in given]
    threads, total = torch.get_num_threads(), sum(size for _, _, size in ranges)
    tasks = []
    for number, (first, last, size) in enumerate(ranges):
        parts = 1 + 2 * threads * size // max(total, 1) if threads > 1 else 1
        step = BLOCK * max(-(-channels // (BLOCK * parts)), 1)
        cuts = range(0, channels, step)
        tasks += [(number, first, last, cut, min(cut + step, channels)) for cut in cuts]
    _announce(kernel)
    if threads == 1 or len(tasks) == 1:
        for task in tasks:
            kernel(*arrays, *task)
        return
    for running in [_pool(threads).submit(kernel, *arrays, *task) for task in tasks]:
        running.result()


@functools.cache
def _announce(kernel: Any) -> None:
    cached = Path(kernel.stats.cache_path or ".").glob(f"*.{kernel.__name__}-*.nbi")
    if not any(cached):
        logger.warning("compiling %s for this CPU once; cached afterwards", kernel.__name__)


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "equipool")


_forget: Callable[[], None] = _pool.cache_clear
if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=_forget)
