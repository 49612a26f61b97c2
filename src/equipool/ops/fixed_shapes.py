"""Whether the host may look at what a tensor holds."""

from __future__ import annotations

import torch


def shapes_are_fixed() -> bool:
    """Whether nothing that is done may depend on the values of tensors, because it is being
    compiled or recorded as a CUDA graph."""
    if torch.compiler.is_compiling():
        return True
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
