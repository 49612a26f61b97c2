"""Contexts for querying a trained layer."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TypeVar

import torch
from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)


def in_evaluation_mode(module: Module) -> Module:
    """The module, or a copy in evaluation mode if any part of it is in training mode."""
    if not any(part.training for part in module.modules()):
        return module
    with torch.inference_mode(False):  # its tensors could not be differentiated
        return copy.deepcopy(module).eval()


@contextmanager
def inference_context(device: torch.device) -> Iterator[None]:
    """Without gradients, in the layer's own precision, and outside inference mode, whose tensors
    cannot be used elsewhere."""
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(device.type, enabled=False):
        yield


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
