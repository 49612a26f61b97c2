"""The layer against the naive reference, and the reference against pencil and paper."""

import math

import pytest
import torch

from cases import SCALINGS, assert_near, flatten, make_layer, make_sets
from equipool import EquilibriumAggregation, LearnedStart, Nesterov, ResNetPotential, SquaredNorm
from equipool.ops import segments
from equipool.ops.resnet_gradient import torch as torch_gradient
from equipool.reference import aggregate, energy, energy_gradient

TOLERANCE = 1e-10
SIZES = (3, 1, 0, 6, 2)

ARCHITECTURES = {
    "one number, one layer": (1, 1, (1,)),
    "odd sizes": (3, 4, (7, 5, 3)),
    "every skip the identity": (2, 3, (5, 5, 5)),
    "one layer, identity": (3, 3, (6,)),
    "four layers, last the identity": (5, 2, (9, 11, 4, 4)),
    "one output": (3, 5, (6, 1)),
    "the paper's default": (2, 5, None),
}


@pytest.fixture(params=[True, False], ids=["factored", "autograd"])
def factored(request):
    """Both ways to the gradient by y: the hand-written operation and automatic differentiation."""
    return request.param


def gradients(loss, inputs):
    """Gradients by all inputs, zeros where the loss does not depend on one."""
    if not loss.requires_grad:
        return [torch.zeros_like(i) for i in inputs]
    found = torch.autograd.grad(loss, inputs, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(i) if g is None else g for i, g in zip(inputs, found, strict=True)]


def assert_agree(layer, sizes=SIZES):
    """Output, energy, auxiliary loss and their gradients, by x and by every parameter."""
    x, index = flatten(make_sets(sizes, layer.in_channels))
    x.requires_grad_()
    order = torch.randperm(len(x))
    solution = layer.solve(x[order], index[order], dim_size=len(sizes))
    parts = x.split(list(sizes))
    y, aux_loss = aggregate(parts, layer)

    assert_near(solution.y, y, TOLERANCE)
    assert_near(layer(x[order], index[order], dim_size=len(sizes)), y, TOLERANCE)
    assert_near(solution.aux_loss, aux_loss, TOLERANCE)
    energies = torch.stack([energy(s, row, layer) for s, row in zip(parts, y, strict=True)])
    assert_near(solution.energy, energies, TOLERANCE)
    steepest = [energy_gradient(s, row, layer).abs().max() for s, row in zip(parts, y, strict=True)]
    assert_near(solution.residual, torch.stack(steepest), TOLERANCE)

    names, parameters = zip(*layer.named_parameters(), strict=True)
    readout = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    inputs = [x, *parameters]
    for found, expected in [
        ((solution.y * readout).sum(), (y * readout).sum()),
        (solution.aux_loss, aux_loss),
        (solution.energy.sum(), energies.sum()),
    ]:
        pairs = zip(gradients(found, inputs), gradients(expected, inputs), strict=True)
        for name, (a, b) in zip(["x", *names], pairs, strict=True):
            try:
                assert_near(a, b, TOLERANCE)
            except AssertionError as error:
                raise AssertionError(f"gradient by {name}: {error}") from None


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("architecture", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_architectures_scalings_and_reductions(architecture, scaling, reduction, factored):
    layer = make_layer(
        *architecture, scaling=scaling, reduction=reduction, num_steps=4, factored=factored
    )
    assert_agree(layer)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("num_steps", [0, 1, 2, 12])
def test_numbers_of_steps(num_steps, scaling, factored):
    assert_agree(make_layer(scaling=scaling, num_steps=num_steps, factored=factored))


@pytest.mark.parametrize(("num_steps", "scaling"), [(1, "log"), (4, "sum"), (12, "mean")])
@pytest.mark.parametrize(("gtol", "clip_value"), [(0.3, None), (0.0, 0.05), (0.3, 0.05)])
def test_gtol_and_clip(gtol, clip_value, num_steps, scaling, factored):
    options = {"gtol": gtol, "clip_value": clip_value, "factored": factored}
    assert_agree(make_layer(num_steps=num_steps, scaling=scaling, **options))


def test_gtol_and_clip_are_at_work_in_these_cases():
    x, index = flatten(make_sets(SIZES))
    path = make_layer(num_steps=20, gtol=0.3).solve(x, index, trajectory=True).trajectory
    moves = path.diff(dim=0).abs().amax(-1)[:, [0, 1, 3, 4]] > 0
    assert moves.any()
    assert not moves.all()
    assert make_layer(num_steps=20)(x, index).abs().max() > 0.1
    assert make_layer(num_steps=20, clip_value=0.05)(x, index).abs().max().item() == 0.05


@pytest.mark.parametrize("scaling", SCALINGS)
def test_learned_start(scaling, factored):
    layer = make_layer(scaling=scaling, start=LearnedStart(4, 0.5), factored=factored)
    assert_agree(layer)
    layer.steps = 0
    assert_agree(layer)


def test_only_empty_sets(factored):
    assert_agree(make_layer(start=LearnedStart(4, 0.5), factored=factored), sizes=(0, 0))


@pytest.mark.parametrize("scaling", SCALINGS)
def test_sums_in_pieces(scaling, factored, monkeypatch):
    """Very large batches are cut; here, already a batch of twelve elements."""
    monkeypatch.setattr(torch_gradient, "CPU_FLOATS", 90)
    monkeypatch.setattr(segments, "BLOCKED_FROM", 1)
    monkeypatch.setattr(segments, "BLOCK", 2)
    assert_agree(make_layer(scaling=scaling, start=LearnedStart(4, 0.5), factored=factored))


def test_reference_agrees_with_pencil_and_paper():
    """F = (a x + b y + c)^2 with a, b, c summed over linear and skip; two elements, two steps."""
    layer = EquilibriumAggregation(
        1, 1, potential=ResNetPotential(1, 1, hidden=(1,)), regularizer=SquaredNorm(0.5),
        solver=Nesterov(learning_rate=0.125, momentum=0.5), steps=2,
    ).double()  # fmt: skip
    linear, skip = layer.potential.linears[0], layer.potential.skips[0]
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[1.0, 0.5]]))
        skip.weight.copy_(torch.tensor([[1.0, 0.5]]))
        linear.bias.fill_(0.25)
        skip.bias.fill_(0.75)
    a, b, c, w, rate, mu = 2.0, 1.0, 1.0, 0.5, 0.125, 0.5
    scale = math.log2(3) / (2 + 1e-8)

    def gradient(y):
        return scale * (2 * w * y + sum(2 * b * (a * x + b * y + c) for x in (1.0, -3.0)))

    g1 = gradient(0.0)
    v1 = -rate * g1
    y1 = v1
    g2 = gradient(y1 + mu * v1)
    y2 = y1 + mu * v1 - rate * g2
    x = torch.tensor([[1.0], [-3.0]], dtype=torch.float64)
    for y, aux_loss in [aggregate([x], layer), (layer(x), layer.solve(x).aux_loss)]:
        assert y.item() == pytest.approx(y2, rel=1e-12)
        assert aux_loss.item() == pytest.approx((g1**2 + g2**2) / 2, rel=1e-12)
