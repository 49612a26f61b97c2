"""The fused step against plain operations, with limits and without."""

import pytest
import torch

from equipool import EquilibriumAggregation, Nesterov, ResNetPotential
from equipool.ops import kernels
from equipool.ops.derivatives import History, momentum_step

OPTIONS = [(None, False), (None, True), (0.5, False), (0.5, True)]
CASES = [*(((5, 7), options) for options in OPTIONS), ((1, 1), OPTIONS[-1]), ((9, 16), OPTIONS[0])]
USED = [((0,), False), ((1,), True), ((2,), False), ((0, 2), True), ((0, 1, 2), True),
        ((0, 1, 2), False)]  # fmt: skip


def inputs(shape, device, dtype=torch.float32):
    """Rows of lengths from small to large, so that some are cut and some are not; the last point of
    one row is its point."""
    scale = torch.logspace(-1, 1, shape[0], device=device, dtype=dtype)[:, None]
    rows = [scale * torch.randn(shape, device=device, dtype=dtype) for _ in range(6)]
    y, velocity, gradient, point, last_point, last_gradient = rows
    last_point[-1] = point[-1]
    curvature = torch.linspace(0, 6, shape[0], device=device, dtype=dtype)[:, None]
    scalars = [torch.tensor(v, device=device, dtype=dtype) for v in (0.3, 0.8)]
    moving = [t.requires_grad_() for t in (y, velocity, gradient, *scalars)]
    return moving, History(point, last_point, last_gradient, curvature)


def run(moving, max_step, history, used=(0, 1, 2)):
    for tensor in moving:
        tensor.grad = None
    outs = momentum_step(*moving, max_step, history)
    weights = [torch.linspace(-1, k + 1, outs[0].numel(), device=outs[0].device) for k in range(3)]
    sum((w * outs[k].flatten()).sum() for k, w in enumerate(weights) if k in used).backward()
    return [*outs, *(t.grad for t in moving)]


def plainly(monkeypatch):
    monkeypatch.setattr("equipool.ops.derivatives.kernels_serve", lambda x: False)


def assert_same(fused, plain, tolerance=2e-5):
    for a, b in zip(fused, plain, strict=True):
        if a is None:
            assert b is None
        else:
            expected = torch.zeros_like(a) if b is None else b
            torch.testing.assert_close(a, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("shape", "options"), CASES)
def test_fused_step(shape, options, device, forced, monkeypatch):
    moving, history = inputs(shape, device)
    case = moving, options[0], history if options[1] else None
    fused = run(*case)
    plainly(monkeypatch)
    assert_same(fused, run(*case))


@pytest.mark.parametrize(("used", "restrained"), USED)
def test_parts_that_nothing_depends_on(used, restrained, device, forced, monkeypatch):
    """By several programs, each with sums of its own."""
    monkeypatch.setattr(kernels, "ALONE", 0)
    monkeypatch.setattr(kernels, "BLOCK", 16)
    assert kernels.Shape(torch.zeros(5, 7), by_rows=restrained).grid == (3,)
    moving, history = inputs((5, 7), device)
    case = (moving, 0.5, history) if restrained else (moving, None, None)
    fused = run(*case, used)
    plainly(monkeypatch)
    assert_same(fused, run(*case, used))


@pytest.mark.parametrize("kind", ["plain operations", "kernel"])
def test_small_gradients_give_right_derivatives(kind, device, request):
    """A gradient far below the velocity's rounding: it is not recovered from the velocities."""
    if kind == "kernel":
        request.getfixturevalue("forced")
    y, velocity = torch.zeros(2, 4, 33, device=device)
    gradient = 1e-9 * torch.randn(4, 33, device=device)
    rate, momentum = (torch.tensor(v, device=device, requires_grad=True) for v in (0.1, 0.9))
    step = momentum_step(y, velocity + 1, gradient, rate, momentum)
    (found,) = torch.autograd.grad(step.y.sum(), rate)
    torch.testing.assert_close(found, -gradient.sum(), rtol=1e-4, atol=1e-14)


def test_second_derivatives(device, forced, monkeypatch):
    moving, history = inputs((5, 7), device)

    def by_gradient():
        y, velocity, ahead, *_ = momentum_step(*moving, 0.5, history)
        total = (y.square() + velocity * ahead).sum()
        firsts = torch.autograd.grad(total, moving, create_graph=True)
        return torch.autograd.grad(sum(first.square().sum() for first in firsts), moving)

    fused = by_gradient()
    plainly(monkeypatch)
    for a, b in zip(fused, by_gradient(), strict=True):
        assert (a - b).norm() <= 1e-4 * b.norm()


def test_curvature_is_the_largest_met():
    moving, history = inputs((9, 16), "cpu")
    found = momentum_step(*moving, history=history).curvature
    for row in range(9):
        moved = (history.point - history.last_point)[row].norm().item()
        bent = (moving[2] - history.last_gradient)[row].norm().item()
        expected = max(bent / moved if moved else 0.0, history.curvature[row].item())
        assert found[row].item() == pytest.approx(expected, rel=1e-5)


def test_a_step_saves_three_tensors_of_the_sets_size(device, forced):
    """The point, the velocity and the gradient: nothing else grows with the steps."""

    def saved(num_steps):
        potential = ResNetPotential(4, 8, (16, 8, 4))
        layer = EquilibriumAggregation(
            4, 8, potential=potential, solver=Nesterov(), steps=num_steps
        ).to(device)
        sizes = {}
        kept = []

        def pack(tensor):
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            kept.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            y = layer(torch.randn(9, 4, device=device))
        del y
        return sum(sizes.values())

    assert saved(4) - saved(2) == 2 * 3 * 8 * 4
