"""Derivatives by a solver's scalars, which each step adds to those of the steps after it."""

import copy

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from equipool import (
    EquilibriumAggregation,
    HeavyBall,
    Implicit,
    Nesterov,
    NoRegularizer,
    ResNetPotential,
    RestrainedNesterov,
    ToTolerance,
    Truncated,
    Unrolled,
)
from equipool.ops import kernels
from equipool.ops.momentum import History, Limits, momentum_step


def free(y, velocity, gradient, rate, momentum):
    return momentum_step(y, velocity, gradient, rate, momentum)[:5]


def held_back(y, velocity, gradient, rate, momentum):
    history = History(y, torch.zeros_like(y), torch.zeros_like(y), torch.full_like(y[:, :1], 2.0))
    return momentum_step(y, velocity, gradient, rate, momentum, Limits(0.5, 1.5), history)[:5]


@pytest.fixture(params=[free, held_back])
def step(request):
    return request.param


@pytest.fixture
def in_pieces(monkeypatch):
    """Several programs, each with sums of its own."""
    monkeypatch.setattr(kernels, "ALONE", 0)
    monkeypatch.setattr(kernels, "BLOCK", 16)


def inputs(device):
    torch.manual_seed(0)
    rows = [torch.randn(5, 7, device=device, requires_grad=True) for _ in range(2)]
    return *rows, *(torch.tensor(v, device=device, requires_grad=True) for v in (0.3, 0.8))


def walk(step, start, num_steps=3, hand_on=True):
    """A few steps along a gradient that bends; all that is carried after each."""
    y, velocity, rate, momentum = start
    point, path = y, []
    for _ in range(num_steps):
        y, velocity, point, *scalars = step(y, velocity, torch.sin(3 * point), rate, momentum)
        if hand_on:
            rate, momentum = scalars
        path.append((y, velocity, point, *scalars))
    return path


def total(state):
    return sum((k + 1) * part.square().sum() for k, part in enumerate(state))


def assert_close(found, expected, tolerance=1e-4):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def plainly(monkeypatch, compute):
    with monkeypatch.context() as patched:
        for module in ("momentum", "derivatives", "ranges"):
            patched.setattr(f"equipool.ops.{module}.kernels_serve", lambda x: False)
        return compute()


class Sums(TorchDispatchMode):
    """Counts additions of single numbers."""

    num = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        self.num += function is torch.ops.aten.add.Tensor and out.dim() == 0
        return out


class TestSteps:
    @pytest.mark.parametrize("pieces", [False, True])
    def test_several(self, step, pieces, device, forced, request, monkeypatch):
        if pieces:
            request.getfixturevalue("in_pieces")

        def gradients():
            start = inputs(device)
            return torch.autograd.grad(total(walk(step, start)[-1]), start)

        assert_close(gradients(), plainly(monkeypatch, gradients))

    def test_the_scalars_are_those_given(self, step, device, forced):
        start = inputs(device)
        for state in walk(step, start):
            assert torch.equal(torch.stack(state[3:]), torch.stack(start[2:]))

    def test_handing_them_on_is_optional(self, step, device, forced):
        """A step that reads the first ones gets the same derivatives, added by autograd."""
        start = inputs(device)
        found = [
            torch.autograd.grad(total(walk(step, start, hand_on=hand_on)[-1][:3]), start)
            for hand_on in (True, False)
        ]
        assert_close(*found)

    def test_nothing_is_left_for_autograd_to_add(self, step, device, forced):
        numbers = []
        for hand_on in (True, False):
            start = inputs(device)
            y = walk(step, start, hand_on=hand_on)[-1][0]
            with Sums() as sums:
                torch.autograd.grad(y, start[2:], torch.ones_like(y))
            numbers.append(sums.num)
        assert numbers == [0, 4]

    def test_scalars_without_the_step(self, step, device, forced):
        """What depends on the scalars alone passes by every step."""
        start = inputs(device)
        *_, rate, momentum = walk(step, start)[-1]
        by_rate, by_momentum = torch.autograd.grad(2 * rate + 3 * momentum, start[2:])
        assert (by_rate.item(), by_momentum.item()) == (2, 3)

    @pytest.mark.parametrize("which", [3, 4])
    def test_one_of_the_scalars_read_elsewhere(self, which, step, device, forced, monkeypatch):
        def gradients():
            start = inputs(device)
            state = walk(step, start)[-1]
            return torch.autograd.grad((state[which] * state[0]).sum(), start)

        assert_close(gradients(), plainly(monkeypatch, gradients))

    @pytest.mark.parametrize("fixed", [2, 3])
    def test_a_scalar_that_is_not_learned(self, fixed, step, device, forced, monkeypatch):
        def gradients(again):
            start = inputs(device)
            start[fixed].requires_grad_(False)
            learned = [tensor for tensor in start if tensor.requires_grad]
            loss = total(walk(step, start)[-1])
            firsts = torch.autograd.grad(loss, learned, create_graph=again)
            return torch.autograd.grad(total(firsts), learned) if again else firsts

        assert_close(gradients(False), plainly(monkeypatch, lambda: gradients(False)))
        assert_close(gradients(True), plainly(monkeypatch, lambda: gradients(True)), 1e-3)

    def test_backward_passes_from_several_steps(self, step, device, forced, monkeypatch):
        """Each has sums of its own, whatever passes came before and however far they went."""

        def gradients():
            start = inputs(device)
            path = walk(step, start)
            losses = [total(state[:3]) for state in path]
            torch.autograd.grad(losses[2], start[0], retain_graph=True)
            found = [torch.autograd.grad(losses[k], start, retain_graph=True) for k in (2, 0, 2)]
            assert all(torch.equal(a, b) for a, b in zip(found[0], found[2], strict=True))
            return [*found[0], *found[1], *torch.autograd.grad(sum(losses), start)]

        assert_close(gradients(), plainly(monkeypatch, gradients))

    def test_second_derivatives(self, step, device, forced, monkeypatch):
        def gradients():
            start = inputs(device)
            firsts = torch.autograd.grad(total(walk(step, start)[-1]), start, create_graph=True)
            return torch.autograd.grad(total(firsts), start)

        assert_close(gradients(), plainly(monkeypatch, gradients), 1e-3)


class Valley(nn.Module):
    """A potential that bends, in plain operations."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.7, 1.1, 1.6]))

    def forward(self, x, y):
        return (self.weight * (1 + (y - x).square()).sqrt()).sum(-1)


SOLVERS = {
    "nesterov": lambda: Nesterov(momentum=0.5),
    "clipped": lambda: Nesterov(momentum=0.5, gtol=0.05, clip_value=0.4),
    "heavy ball": lambda: HeavyBall(momentum=0.5),
    "restrained": lambda: RestrainedNesterov(momentum=0.5, max_step=0.3, curvature_safe=True),
}


@pytest.fixture(params=SOLVERS)
def layer(request, device):
    solver = SOLVERS[request.param]()
    return EquilibriumAggregation(3, 3, potential=Valley(), solver=solver, num_steps=4).to(device)


def batch(layer, device):
    torch.manual_seed(0)
    x = torch.randn(6, 3).to(device, next(layer.parameters()).dtype).requires_grad_()
    return x, torch.tensor([0, 0, 1, 2, 2, 2], device=device)


def assert_as_in_float64(layer, device, loss, tolerance=1e-4):
    """The derivatives by the elements and by all that is learned; float64 has no kernels."""
    found = []
    for model in (layer, copy.deepcopy(layer).double()):
        x, index = batch(model, device)
        loss(model, x, index).backward()
        gradients = [x.grad, *(parameter.grad for parameter in model.parameters())]
        assert all(gradient is not None for gradient in gradients)
        assert all(gradient.any() for gradient in gradients)
        found.append([gradient.float() for gradient in gradients])
    assert_close(*found, tolerance)


def plain_loss(layer, x, index):
    solution = layer.solve(x, index)
    return solution.y.square().sum() + 0.1 * solution.aux_loss


@pytest.mark.parametrize("name", ["nesterov", "heavy ball", "restrained"])
def test_solvers_hand_them_on(name, device, forced):
    layer = EquilibriumAggregation(
        3, 3, potential=Valley(), regularizer=NoRegularizer(), solver=SOLVERS[name](), num_steps=4
    ).to(device)
    y = layer(*batch(layer, device))
    with Sums() as sums:
        torch.autograd.grad(y, list(layer.solver.parameters()), torch.ones_like(y))
    assert sums.num == 0


class TestLayers:
    @pytest.mark.parametrize("way", [Unrolled(), Truncated(2), Implicit(tolerance=0.0)])
    def test_ways_to_differentiate(self, way, layer, device, forced):
        """`Implicit` follows the last steps where no set has converged."""
        layer.differentiation = way
        assert_as_in_float64(layer, device, plain_loss)

    @pytest.mark.parametrize("way", [Unrolled(), Truncated(2)])
    def test_sets_that_stop_early(self, way, layer, device, forced):
        layer.differentiation, layer.steps = way, ToTolerance(0.1, 12)
        x, index = batch(layer, device)
        assert layer.solve(x, index).steps.unique().numel() > 1
        assert_as_in_float64(layer, device, plain_loss)

    def test_a_layer_used_twice(self, layer, device, forced):
        def loss(layer, x, index):
            return plain_loss(layer, layer(x, index)[index] + x, index)

        assert_as_in_float64(layer, device, loss)

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_checkpoints(self, reentrant, layer, device, forced):
        layer.potential = ResNetPotential(3, 3, hidden=(4, 2)).to(device)

        def loss(layer, x, index):
            y = checkpoint(layer, x, index, use_reentrant=reentrant)
            return y.square().sum()

        assert_as_in_float64(layer, device, loss)

    def test_two_backward_passes(self, layer, device, forced):
        """From a part of the path, and then from all of it."""

        def loss(layer, x, index):
            path = layer.solve(x, index, trajectory=True).trajectory
            path[2].square().sum().backward(retain_graph=True)
            return path[4].square().sum()

        assert_as_in_float64(layer, device, loss)
