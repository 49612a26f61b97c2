"""What this package uses of torch beyond its public interface, each part in one place.

`tests/test_private_torch.py` tries every function, so that a version of torch without one of them
fails there first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.modules import module as _hooks
from torch.nn.modules.dropout import _DropoutNd

F = TypeVar("F", bound=Callable[..., Any])


is_transforming: Callable[[], bool] = torch._C._are_functorch_transforms_active
"""Whether a transform of `torch.func` is active."""

stands_for_several: Callable[[Tensor], bool] = torch._C._functorch.is_legacy_batchedtensor
"""Whether a tensor is a batch in disguise, as with `autograd.grad(is_grads_batched=True)`."""

current_backward: Callable[[], int] = torch._C._current_graph_task_id
"""The number of the backward pass that is running in this thread, -1 for none."""

Dropout = _DropoutNd
"""The class of torch's dropouts, of rate `p`."""

GLOBAL_BACKWARD_HOOKS = _hooks._global_backward_hooks, _hooks._global_backward_pre_hooks
"""The backward hooks of all modules."""

GLOBAL_HOOKS = (
    *GLOBAL_BACKWARD_HOOKS,
    _hooks._global_forward_hooks,
    _hooks._global_forward_pre_hooks,
)
"""The hooks of all modules, of any kind."""


def is_dispatch_mode_active() -> bool:
    """Whether a `TorchDispatchMode` sees every operation."""
    return torch._C._len_torch_dispatch_stack() > 0


def export_flag() -> bool:
    """`torch.compiler.is_exporting()`, which in torch 2.11 is True inside `torch.compile` as well
    (pytorch#176347)."""
    return bool(getattr(torch.compiler, "_is_exporting_flag", False))


def while_tracing(function: F) -> F:
    """A decorator: `torch.compile` calls the function while it traces, and the compiled program has
    its result as a constant. That of `torch.compiler` imports the compiler, which takes seconds."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def outside_compiler(function: F) -> F:
    """A decorator: `torch.compile` breaks the graph and calls the function as it is. That of
    `torch.compiler` imports the compiler at once, this one at the first call."""
    return torch._disable_dynamo(function)  # type: ignore[attr-defined,return-value]


def clear_workspaces() -> None:
    """Free the scratch memory that torch keeps for matrix products; nothing without CUDA."""
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()


def profiled_events(profile: torch.profiler.profile) -> Iterable[Any]:
    """What a profile saw, allocations included, each with `name()`, `start_ns()` and `nbytes()`."""
    assert profile.profiler is not None
    return profile.profiler.kineto_results.events()  # type: ignore[union-attr]
