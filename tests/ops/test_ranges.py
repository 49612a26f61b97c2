"""Numbers in a range, by one kernel, against plain operations in float64."""

import pytest
import torch

from equipool.ops import ranges
from equipool.ops.ranges import fraction, positive

RAWS = [-100.0, -60.0, -3.0, -1e-4, 0.0, 0.5, 3.0, 60.0, 100.0]
CASES = [
    *((positive, origin) for origin in (1e-30, 1e-8, 1e-3, 0.1, 0.125, 1 / 3, 2.7, 30.0, 1e4)),
    *((fraction, origin) for origin in (0.0, 1e-8, 0.1, 0.3, 0.5, 0.9, 0.999, 1 - 1e-6)),
]


def run(constrain, origin, raw, dtype, device):
    """The number, and its slope."""
    origin = torch.tensor(origin, device=device).to(dtype)  # rounded to float32 in any case
    raw = torch.tensor(raw, device=device, dtype=dtype, requires_grad=True)
    out = constrain(origin, raw)
    out.backward(torch.tensor(-1.5, device=device, dtype=dtype))
    return out.detach(), raw.grad


@pytest.mark.parametrize(("constrain", "origin"), CASES)
def test_the_kernels_compute_what_the_formula_says(constrain, origin, device, forced):
    for raw in RAWS:
        fused = run(constrain, origin, raw, torch.float32, device)
        wide = run(constrain, origin, raw, torch.float64, "cpu")
        for a, b in zip(fused, wide, strict=True):
            assert a.dtype == torch.float32
            torch.testing.assert_close(a.cpu().double(), b, rtol=3e-7, atol=1e-37)


@pytest.mark.parametrize("constrain", [positive, fraction])
def test_the_number_at_zero_is_the_one_given(constrain, device, forced):
    for origin in torch.rand(60, generator=torch.Generator().manual_seed(0)).tolist():
        out, _ = run(constrain, origin, 0.0, torch.float32, device)
        assert out.item() == origin


@pytest.mark.parametrize("constrain", [positive, fraction])
def test_can_be_differentiated_again(constrain, device, forced):
    def second(dtype, device):
        origin = torch.tensor(0.25, device=device).to(dtype)
        raw = torch.tensor(0.3, device=device, dtype=dtype, requires_grad=True)
        (slope,) = torch.autograd.grad(constrain(origin, raw), raw, create_graph=True)
        (curvature,) = torch.autograd.grad(slope, raw)
        return curvature.item()

    assert second(torch.float32, device) == pytest.approx(second(torch.float64, "cpu"), rel=1e-5)


@pytest.mark.parametrize("constrain", [positive, fraction])
def test_one_kernel_a_pass(constrain, device, forced, monkeypatch):
    """Plain operations are not fallen back to; several numbers at once are left to them."""
    calls = []
    monkeypatch.setattr(ranges, "_Fused", Recorder(ranges._Fused, calls))
    run(constrain, 0.25, 0.5, torch.float32, device)
    assert calls == [()]
    several = constrain(torch.tensor(0.25, device=device), torch.zeros(3, device=device))
    assert calls == [()]
    assert several.tolist() == [0.25] * 3


class Recorder:
    """An operation that notes the shape of what it is given."""

    def __init__(self, operation, calls):
        self.operation, self.calls = operation, calls

    def apply(self, plain, origin, raw):
        self.calls.append(tuple(raw.shape))
        return self.operation.apply(plain, origin, raw)
