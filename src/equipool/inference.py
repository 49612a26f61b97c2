"""Contexts for querying a trained layer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


def call_on_rows(function: Callable[[Tensor], Tensor], y: Tensor) -> Tensor:
    """A user's function of outputs, which must treat each row by itself."""
    values = function(y)
    if values.shape[:1] != y.shape[:1]:
        raise ValueError(
            f"function returned shape {list(values.shape)} for y of shape {list(y.shape)}, "
            "expected one row for each row of y"
        )
    return values
