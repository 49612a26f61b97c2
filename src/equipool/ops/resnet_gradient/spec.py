"""What the gradient operation needs to know beside tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Spec:
    """A residual potential's shape and precision."""

    sizes: tuple[int, ...]
    """Sizes of the layers, the last one included."""

    scale: float
    """The potential is half of this times the sum of the last layer's squares."""

    eps: float
    """Added to the variance in the normalisations."""

    product_dtype: torch.dtype
    """Precision of the matrix products' operands; sums are taken in float32 at least."""
