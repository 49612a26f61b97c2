"""How much of an energy's change is rounding."""

from __future__ import annotations

import torch
from torch import Tensor

ULPS = 32  # of an energy, a sum over the set: what its last digits may be off by


def slack(energy: Tensor) -> Tensor:
    """The rise of an energy that is taken for rounding."""
    return ULPS * torch.finfo(energy.dtype).eps * energy.abs()
