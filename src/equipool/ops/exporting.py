"""Whether a program is being exported."""

from __future__ import annotations

import torch


def is_exporting() -> bool:
    """`torch.compiler.is_exporting()`, which in torch 2.11 is True inside `torch.compile` as well
    (pytorch#176347)."""
    return bool(getattr(torch.compiler, "_is_exporting_flag", False))
