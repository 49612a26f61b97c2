"""Matrices from products with them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def assemble(product: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
    """The symmetric matrix `[num_rows, K, K]` of each row, from its products with the unit vectors:
    `product` maps `[num_rows, K]`, the shape of `like`, to itself. Rounding is evened out."""
    units = torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
    columns = [product(unit.expand_as(like).contiguous()) for unit in units]
    matrix = torch.stack(columns, dim=-1)
    return (matrix + matrix.mT) / 2
