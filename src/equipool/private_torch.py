"""What this package uses of torch beyond its public interface, each part in one place.

`tests/test_private_torch.py` tries every function, so that a version of torch without one of them
fails there first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as _hooks
from torch.nn.modules.dropout import _DropoutNd

F = TypeVar("F", bound=Callable[..., Any])


def is_transforming() -> bool:
    """Whether a transform of `torch.func` is active."""
    return torch._C._are_functorch_transforms_active()


def stands_for_several(tensor: Tensor) -> bool:
    """Whether a tensor is a batch in disguise, as with `autograd.grad(is_grads_batched=True)`."""
    return torch._C._functorch.is_legacy_batchedtensor(tensor)


def is_dispatch_mode_active() -> bool:
    """Whether a `TorchDispatchMode` sees every operation."""
    return torch._C._len_torch_dispatch_stack() > 0


def is_exporting() -> bool:
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


def current_backward() -> int:
    """The number of the backward pass that is running in this thread, -1 for none."""
    return torch._C._current_graph_task_id()


def clear_workspaces() -> None:
    """Free the scratch memory that torch keeps for matrix products; nothing without CUDA."""
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()


def global_backward_hooks() -> tuple[dict[int, Any], ...]:
    """The backward hooks of all modules."""
    return _hooks._global_backward_hooks, _hooks._global_backward_pre_hooks


def has_global_hooks() -> bool:
    """Whether all modules have a hook of any kind."""
    forward = _hooks._global_forward_hooks, _hooks._global_forward_pre_hooks
    return any(forward) or any(global_backward_hooks())


def is_dropout(module: nn.Module) -> bool:
    """Whether a module is one of torch's dropouts, of rate `p`."""
    return isinstance(module, _DropoutNd)


def profiled_events(profile: torch.profiler.profile) -> Iterable[Any]:
    """What a profile saw, allocations included, each with `name()`, `start_ns()` and `nbytes()`."""
    assert profile.profiler is not None
    return profile.profiler.kineto_results.events()  # type: ignore[union-attr]
