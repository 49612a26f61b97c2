"""The fused step that is held back against plain operations."""

import itertools

import pytest
import torch

from equipool.ops import launching, restrained_kernels
from equipool.ops.restrained import Met, Restraints, restrained_step

SHAPES = [(5, 7), (1, 1), (9, 16)]
OPTIONS = list(itertools.product([None, 0.5], [None, 1.5], [False, True]))


def inputs(shape, device):
    """Rows of lengths from small to large, so that some are cut and some are not; the last point of
    one row is its point."""
    torch.manual_seed(0)
    scale = torch.logspace(-1, 1, shape[0], device=device)[:, None]
    rows = [scale * torch.randn(shape, device=device) for _ in range(6)]
    y, velocity, gradient, point, last_point, last_gradient = rows
    last_point[-1] = point[-1]
    curvature = torch.linspace(0, 6, shape[0], device=device)[:, None]
    scalars = [torch.tensor(v, device=device) for v in (0.3, 0.8)]
    moving = [t.requires_grad_() for t in (y, velocity, gradient, *scalars)]
    return moving, Met(point, last_point, last_gradient, curvature)


def run(shape, device, restraints, used=(0, 1, 2)):
    moving, met = inputs(shape, device)
    outs = restrained_step(*moving, met, restraints)
    weights = [torch.linspace(-1, k + 1, outs[0].numel(), device=device) for k in range(3)]
    loss = sum((w * outs[k].flatten()).sum() for k, w in enumerate(weights) if k in used)
    loss.backward()
    return [*outs, *(t.grad for t in moving)]


def assert_same(fused, plain):
    for a, b in zip(fused, plain, strict=True):
        torch.testing.assert_close(a, torch.zeros_like(a) if b is None else b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_fused_step(shape, options, device, forced, monkeypatch):
    fused = run(shape, device, Restraints(*options))
    monkeypatch.setattr("equipool.ops.restrained.kernels_serve", lambda x: False)
    assert_same(fused, run(shape, device, Restraints(*options)))


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 2)])
def test_parts_that_nothing_depends_on(used, device, forced, monkeypatch):
    restraints = Restraints(0.5, 1.5, True)
    fused = run((5, 7), device, restraints, used)
    monkeypatch.setattr("equipool.ops.restrained.kernels_serve", lambda x: False)
    assert_same(fused, run((5, 7), device, restraints, used))


def test_several_programs(device, forced, monkeypatch):
    monkeypatch.setattr(launching, "ALONE", 0)
    monkeypatch.setattr(launching, "BLOCK", 16)
    monkeypatch.setattr(restrained_kernels, "BLOCK", 16)
    restraints = Restraints(0.5, 1.5, True)
    assert restrained_kernels.Shape(torch.zeros(5, 7)).grid == (3,)
    fused = run((5, 7), device, restraints)
    monkeypatch.setattr("equipool.ops.restrained.kernels_serve", lambda x: False)
    assert_same(fused, run((5, 7), device, restraints))


def test_second_derivatives(device, forced, monkeypatch):
    def by_gradient():
        moving, met = inputs((5, 7), device)
        y, velocity, ahead, *_ = restrained_step(*moving, met, Restraints(0.5, 1.5, True))
        total = (y.square() + velocity * ahead).sum()
        firsts = torch.autograd.grad(total, moving, create_graph=True)
        return torch.autograd.grad(sum(first.square().sum() for first in firsts), moving)

    fused = by_gradient()
    monkeypatch.setattr("equipool.ops.restrained.kernels_serve", lambda x: False)
    for a, b in zip(fused, by_gradient(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_second_derivatives_of_several_steps(device, forced, monkeypatch):
    """The second step's velocity depends on the scalars that the step itself reads."""

    def by_scalars():
        moving, met = inputs((5, 7), device)
        y, velocity, _, rate, momentum = moving
        restraints, point = Restraints(0.5, 1.5, True), y
        for _ in range(3):
            y, velocity, point, *_ = restrained_step(
                y, velocity, torch.sin(point), rate, momentum, met, restraints
            )
        firsts = torch.autograd.grad(y.square().sum(), [*moving[:2], rate], create_graph=True)
        total = sum(first.square().sum() for first in firsts)
        return torch.autograd.grad(total, [rate, momentum])

    fused = by_scalars()
    monkeypatch.setattr("equipool.ops.restrained.kernels_serve", lambda x: False)
    for a, b in zip(fused, by_scalars(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


def test_curvature_is_the_largest_met():
    moving, met = inputs((9, 16), "cpu")
    found = restrained_step(*moving, met, Restraints(None, None, True))[-1]
    gradient = moving[2]
    for row in range(9):
        moved = (met.point - met.last_point)[row].norm().item()
        bent = (gradient - met.last_gradient)[row].norm().item()
        secant = bent / moved if moved else 0.0
        assert found[row].item() == pytest.approx(max(secant, met.curvature[row].item()), rel=1e-5)
