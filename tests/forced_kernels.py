"""Kernels where they would not be used."""

import pytest
import torch

from equipool.ops.execution import OLDEST_TRITON


def force_kernels(monkeypatch, *modules):
    """Let these modules use their kernels in float32 or shorter on any device: where there is no
    GPU, in Triton's interpreter."""
    pytest.importorskip("triton", minversion=OLDEST_TRITON)
    for module in modules:
        monkeypatch.setattr(module, "kernels_serve", lambda x: x.dtype != torch.float64)
