"""The precision of matrix products, set for one step and restored after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from equipool.bench.cases import Precision
from equipool.bench.outcome import UnavailableError

PRECISIONS: tuple[Precision, ...] = ("float32", "tf32", "bf16")


def check_precision(precision: Precision, device: torch.device) -> None:
    if precision == "tf32" and device.type != "cuda":
        raise UnavailableError("tf32 needs a CUDA device")


@contextmanager
def products_in(precision: Precision) -> Iterator[None]:
    """Whether the tensor cores may round the operands of float32 products: in `tf32` only."""
    products = torch.backends.cuda.matmul
    before, products.allow_tf32 = products.allow_tf32, precision == "tf32"
    try:
        yield
    finally:
        products.allow_tf32 = before


def forward_in(precision: Precision, device: torch.device) -> torch.autocast:
    """`torch.autocast` in `bf16`, for the forward pass alone: the backward pass follows it."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")
