"""Execution mode: eager, compiled, captured or exported; Triton or torch."""

from __future__ import annotations

import functools
import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

import torch
from torch import Tensor

from equipool.private_torch import (
    export_flag,
    is_dispatch_mode_active,
    is_transforming,
    stands_for_several,
    while_tracing,
)


class _Switch(threading.local):
    """Whether this thread uses the Triton kernels."""

    on = True


_switch = _Switch()


@contextmanager
def kernels(enabled: bool) -> Iterator[None]:
    """Use or avoid the Triton kernels inside the block, in this thread. Default: use them."""
    before, _switch.on = _switch.on, enabled
    try:
        yield
    finally:
        _switch.on = before


def kernels_serve(x: Tensor) -> bool:
    """Whether the kernels can take this tensor: eagerly, on the current GPU, in float32 or
    shorter."""
    usable = is_eager_on_gpu(x) and x.dtype != torch.float64 and _switch.on
    return usable and triton_is_installed()


def kernels_are_on() -> bool:
    """Whether this thread uses kernels, as `kernels` sets."""
    return _switch.on


def values_decide(x: Tensor) -> bool:
    """Whether the values of x may decide what runs next: neither compiled, recorded nor
    transformed."""
    return not (x.is_meta or shapes_are_fixed() or is_transforming() or stands_for_several(x))


def is_eager_on_gpu(x: Tensor) -> bool:
    """Whether operations on x are run one by one on the current GPU, where kernels are launched."""
    return (
        x.is_cuda
        and not torch.compiler.is_compiling()
        and x.get_device() == torch.cuda.current_device()
        and not is_transforming()
    )


def values_are_at_hand(x: Tensor) -> bool:
    """Whether values can be read without a device sync: in eager mode, on the CPU."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


OLDEST_TRITON = "3.4"  # that of torch 2.8


@functools.cache
def triton_is_installed() -> bool:
    """Whether a Triton is installed that the kernels can use; warns once if not."""
    try:
        import triton

        found = triton.__version__
    except ImportError:
        found = None
    if found is not None and _release(found) >= _release(OLDEST_TRITON):
        return True
    what = "not installed" if found is None else f"too old ({found})"
    warnings.warn(
        f"Triton is {what}, so equipool uses torch operations on the GPU, which are slower: "
        f'pip install "triton>={OLDEST_TRITON}" with a torch that has it, 2.8 or newer',
        stacklevel=2,
    )
    return False


def _release(version: str) -> tuple[int, ...]:
    """The first two numbers of a version."""
    return tuple(int(number) for number in version.split(".")[:2])


announced: set[int] = set()


@while_tracing
def announce_compilation(num_steps: int) -> None:
    """Log once, before the compiler falls silent, why it takes so long. It is called only where
    the program is being compiled. An export is no compilation: it takes seconds."""
    if is_exporting() or num_steps in announced:
        return
    announced.add(num_steps)
    logging.getLogger("equipool").warning(
        "torch.compile writes out all %d steps of an equilibrium layer's search and is silent "
        "meanwhile: allow 10 to 15 s per step. A layer with fewer steps (layer.steps = 5) "
        "compiles faster.",
        num_steps,
    )


def is_exporting() -> bool:
    """Whether the program is being exported."""
    return torch.compiler.is_compiling() and export_flag()


def is_batched(tensor: Tensor) -> bool:
    """Whether a transform of `torch.func` is active, or the tensor stands for several, as in
    `torch.autograd.grad(..., is_grads_batched=True)`."""
    if torch.compiler.is_compiling():
        return False
    return is_transforming() or stands_for_several(tensor)


def shapes_are_fixed() -> bool:
    """Whether the program must not depend on the values of tensors, because it is being compiled
    or captured as a CUDA graph."""
    if torch.compiler.is_compiling():
        return True
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def graphs_serve(x: Tensor) -> bool:
    """Whether a solve of these elements may be replayed: it would launch kernels eagerly."""
    return is_eager_on_gpu(x) and not shapes_are_fixed() and not is_dispatch_mode_active()


def outside_inference_mode() -> AbstractContextManager[object]:
    """Leaves inference mode, in which `torch.func.grad` gives zeros before torch 2.12. Gradients
    stay off."""
    if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():
        return nullcontext()
    stack = ExitStack()
    stack.enter_context(torch.inference_mode(False))
    stack.enter_context(torch.no_grad())
    return stack


def normal(tensor: Tensor) -> Tensor:
    """A tensor that autograd can use: one made in inference mode is copied."""
    return tensor.clone() if not torch.compiler.is_compiling() and tensor.is_inference() else tensor
