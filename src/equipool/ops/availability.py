"""Where the Triton kernels can serve."""

from __future__ import annotations

import functools
import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_enabled = True


@contextmanager
def kernels(enabled: bool) -> Iterator[None]:
    """Use or avoid the Triton kernels inside the block. They are used unless told otherwise."""
    global _enabled
    before, _enabled = _enabled, enabled
    try:
        yield
    finally:
        _enabled = before


def kernels_serve(x: Tensor) -> bool:
    """Whether the kernels can take this tensor: on the current GPU, which is where they are
    launched, eager, in float32 or shorter."""
    return (
        _enabled
        and x.is_cuda
        and x.get_device() == torch.cuda.current_device()
        and x.dtype != torch.float64
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and triton_is_installed()
    )


@functools.cache
def triton_is_installed() -> bool:
    """Whether Triton is there; says so once where it is not."""
    installed = importlib.util.find_spec("triton") is not None
    if not installed:
        warnings.warn(
            "Triton is not installed, so equipool uses torch operations on the GPU, which are "
            "slower: pip install triton",
            stacklevel=2,
        )
    return installed
