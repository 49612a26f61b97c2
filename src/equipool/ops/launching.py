"""How kernels that go over all numbers of a tensor are launched."""

from __future__ import annotations

from torch import Tensor

BLOCK = 1024
ALONE = 8 * BLOCK  # so few numbers are left to one program: its sums need no further kernel


def grid(tensor: Tensor) -> tuple[int]:
    """Programs, each of which takes every so many-th block."""
    return (1 if tensor.numel() <= ALONE else -(-tensor.numel() // BLOCK),)


def total(of_programs: Tensor) -> Tensor:
    """The sum over the last dimension, of one number for each program."""
    return of_programs[..., 0] if of_programs.shape[-1] == 1 else of_programs.sum(-1)
