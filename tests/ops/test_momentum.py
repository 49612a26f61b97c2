"""The fused step against plain operations."""

import pytest
import torch

from equipool.ops import launching
from equipool.ops.momentum import momentum_step


def run(device, used):
    torch.manual_seed(0)
    tensors = [torch.randn(5, 7, device=device, requires_grad=True) for _ in range(3)]
    scalars = [torch.tensor(v, device=device, requires_grad=True) for v in (0.3, 0.8)]
    outs = momentum_step(*tensors, *scalars)
    weights = [torch.linspace(-1, k + 1, 35, device=device).view(5, 7) for k in range(3)]
    sum((w * outs[k]).sum() for k, w in enumerate(weights) if k in used).backward()
    return [*outs, *(t.grad for t in (*tensors, *scalars))]


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_fused_step(used, alone, device, forced, monkeypatch):
    if not alone:  # several programs, each with sums of its own
        monkeypatch.setattr(launching, "ALONE", 0)
        monkeypatch.setattr(launching, "BLOCK", 16)
        monkeypatch.setattr("equipool.ops.momentum_kernels.BLOCK", 16)
    fused = run(device, used)
    monkeypatch.setattr("equipool.ops.momentum.kernels_serve", lambda x: False)
    for a, b in zip(fused, run(device, used), strict=True):
        assert torch.allclose(a, torch.zeros_like(a) if b is None else b, rtol=1e-5, atol=1e-5)
