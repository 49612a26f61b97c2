"""Learned scalars: exact at the start, within their range ever after."""

import math

import pytest
import torch

from equipool import LearnedStart, Nesterov, SquaredNorm
from equipool.learned_scalars import FractionScalar, PositiveScalar

POSITIVE = [
    *(10.0**e for e in range(-8, 5)), 0.1, 0.125, 0.3, 0.7, 1 / 3, 0.017, 1.1, 2.7, 19.9, 33.3,
    *(torch.rand(200, generator=torch.Generator().manual_seed(0)).double() * 2).tolist(),
]  # fmt: skip
FRACTIONS = [
    0.0, 1e-8, 1e-3, 0.1, 0.3, 0.5, 0.9, 0.95, 0.99, 0.999, 1 - 1e-6,
    *torch.rand(200, generator=torch.Generator().manual_seed(1)).double().tolist(),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_value_given_is_the_value_in_effect(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        for value in POSITIVE:
            assert Nesterov(learning_rate=value).learning_rate.item() == torch.tensor(value).item()
            assert SquaredNorm(weight=value).weight == value
        for value in FRACTIONS:
            assert Nesterov(momentum=value).momentum.item() == torch.tensor(value).item()
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("raw", [-3.0, -0.5, 0.0, 0.5, 3.0])
def test_the_maps_are_the_papers_softplus_and_sigmoid(raw):
    for origin in (1e-3, 0.125, 0.999):
        rate, share = PositiveScalar("", origin).double(), FractionScalar("", origin).double()
        for scalar in (rate, share):
            torch.nn.init.constant_(scalar.raw, raw)
        origin = rate.origin.item()
        softplus = math.log1p(math.exp(raw + math.log(math.expm1(origin))))
        assert rate().item() == pytest.approx(softplus, rel=1e-9)
        logit = math.log(share.origin.item() / (1 - share.origin.item()))
        assert share().item() == pytest.approx(1 / (1 + math.exp(-raw - logit)), rel=1e-9)


def test_a_fixed_scalar_stays():
    solver = Nesterov(learning_rate=0.2, momentum=0.0, learnable=False)
    assert not any(parameter.requires_grad for parameter in solver.parameters())
    assert solver.learning_rate == 0.2
    assert solver.momentum == 0
    assert SquaredNorm(weight=0.0, learnable=False).weight == 0


@pytest.mark.parametrize(
    "make",
    [lambda on: Nesterov(learnable=on), lambda on: LearnedStart(3, 0.5, learnable=on)],
    ids=["solver", "start"],
)
def test_what_was_learned_loads_frozen(make):
    learned, frozen = make(True), make(False)
    with torch.no_grad():
        for parameter in learned.parameters():
            parameter.add_(0.3)
    frozen.load_state_dict(learned.state_dict())
    for name in ("learning_rate", "momentum", "y"):
        if hasattr(learned, name):
            assert torch.equal(getattr(frozen, name), getattr(learned, name))
            assert not getattr(frozen, name).requires_grad


@pytest.mark.parametrize("momentum", [0.9, 0.99, 0.999])
def test_a_half_precision_solver_still_has_friction(momentum):
    """The nearest bfloat16 to 0.999 is 1: a scalar is not rounded at all."""
    solver = Nesterov(learning_rate=0.1, momentum=momentum).bfloat16()
    assert solver.momentum == torch.tensor(momentum)
    assert solver.learning_rate == torch.tensor(0.1)
    assert Nesterov(0.1).double().learning_rate == 0.1
