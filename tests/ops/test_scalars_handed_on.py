"""Derivatives by a solver's scalars, which each step adds to those of the steps after it."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import equipool
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


OUTCOMES = {
    "the last step": lambda path: total(path[-1]),
    "an early step": lambda path: total(path[0][:3]),
    "the rate, read elsewhere": lambda path: (path[-1][3] * path[-1][0]).sum(),
    "the momentum, read elsewhere": lambda path: (path[-1][4] * path[-1][0]).sum(),
    "scalars alone": lambda path: (2 * path[-1][3] + 3 * path[-1][4]).square(),
}


@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)
def test_derivatives(outcome, step, device, forced, in_pieces, monkeypatch):
    def gradients():
        start = inputs(device)
        return torch.autograd.grad(outcome(walk(step, start)), start, materialize_grads=True)

    assert_close(gradients(), plainly(monkeypatch, gradients))


@pytest.mark.parametrize("fixed", [(), (2,), (3,)])
def test_second_derivatives_and_scalars_that_are_not_learned(
    fixed, step, device, forced, monkeypatch
):
    def gradients():
        start = inputs(device)
        for scalar in fixed:
            start[scalar].requires_grad_(False)
        learned = [tensor for tensor in start if tensor.requires_grad]
        firsts = torch.autograd.grad(total(walk(step, start)[-1]), learned, create_graph=True)
        return [*firsts, *torch.autograd.grad(total(firsts), learned)]

    assert_close(gradients(), plainly(monkeypatch, gradients), 1e-3)


def test_the_scalars_are_those_given(step, device, forced):
    start = inputs(device)
    for state in walk(step, start):
        assert torch.equal(torch.stack(state[3:]), torch.stack(start[2:]))


def test_handing_them_on_leaves_nothing_for_autograd_to_add(step, device, forced):
    """A step that reads the first ones gets the same derivatives, added by autograd."""
    found, additions = [], []
    for hand_on in (True, False):
        start = inputs(device)
        y = walk(step, start, hand_on=hand_on)[-1][0]
        with Sums() as sums:
            found.append(torch.autograd.grad(y, start[2:], torch.ones_like(y)))
        additions.append(sums.num)
    assert_close(*found)
    assert additions == [0, 4]


def test_backward_passes_from_several_steps(step, device, forced, monkeypatch):
    """Each has sums of its own, whatever passes came before and however far they went."""

    def gradients():
        start = inputs(device)
        losses = [total(state[:3]) for state in walk(step, start)]
        torch.autograd.grad(losses[2], start[0], retain_graph=True)
        found = [torch.autograd.grad(losses[k], start, retain_graph=True) for k in (2, 0, 2)]
        assert all(torch.equal(a, b) for a, b in zip(found[0], found[2], strict=True))
        return [*found[0], *found[1], *torch.autograd.grad(sum(losses), start)]

    assert_close(gradients(), plainly(monkeypatch, gradients))


class Valley(nn.Module):
    """A potential that bends, in plain operations."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.7, 1.1, 1.6]))

    def forward(self, x, y):
        return (self.weight * (1 + (y - x).square()).sqrt()).sum(-1)


SOLVERS = {
    "nesterov": lambda: equipool.Nesterov(momentum=0.5),
    "clipped": lambda: equipool.Nesterov(momentum=0.5, gtol=0.05, clip_value=0.4),
    "heavy ball": lambda: equipool.GradientDescent(momentum=0.5),
    "restrained": lambda: equipool.Nesterov(momentum=0.5, max_step=0.3, curvature_safe=True),
}


@pytest.fixture(params=["nesterov", "restrained"])
def layer(request, device):
    return make_layer(SOLVERS[request.param](), device)


def make_layer(solver, device, **options):
    return equipool.EquilibriumAggregation(
        3, 3, potential=Valley(), solver=solver, num_steps=4, **options
    ).to(device)


def batch(layer, device):
    torch.manual_seed(0)
    x = torch.randn(6, 3).to(device, next(layer.parameters()).dtype)
    x[2] = 0  # a set of its own, which begins at its minimum
    return x.requires_grad_(), torch.tensor([0, 0, 1, 2, 2, 2], device=device)


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


def used_twice(layer, x, index):
    return plain_loss(layer, layer(x, index)[index] + x, index)


def checkpointed(layer, x, index, reentrant=False):
    return checkpoint(layer, x, index, use_reentrant=reentrant).square().sum()


def from_two_steps(layer, x, index):
    """Backward from a part of the path, and then from all of it."""
    path = layer.solve(x, index, trajectory=True).trajectory
    path[2].square().sum().backward(retain_graph=True)
    return path[4].square().sum()


LOSSES = [used_twice, checkpointed, partial(checkpointed, reentrant=True), from_two_steps]


@pytest.mark.parametrize("name", SOLVERS)
def test_solvers_hand_them_on(name, device, forced):
    layer = make_layer(SOLVERS[name](), device, regularizer=equipool.NoRegularizer())
    assert_as_in_float64(layer, device, plain_loss)
    y = layer(*batch(layer, device))
    with Sums() as sums:
        torch.autograd.grad(y, list(layer.solver.parameters()), torch.ones_like(y))
    assert sums.num == 0 or name == "clipped"  # which replaces rows by plain operations


@pytest.mark.parametrize("loss", LOSSES)
def test_layers(loss, layer, device, forced):
    if "checkpointed" in str(loss):
        layer.potential = equipool.ResNetPotential(3, 3, hidden=(4, 2)).to(device)
    assert_as_in_float64(layer, device, loss)


@pytest.mark.parametrize(
    "method", [equipool.Truncated(2), equipool.Implicit(tolerance=0.0)], ids=repr
)
def test_methods(method, layer, device, forced):
    """`Implicit` follows the last steps where no set has converged."""
    layer.differentiation = method
    assert_as_in_float64(layer, device, plain_loss)


@pytest.mark.parametrize("method", [equipool.Unrolled(), equipool.Truncated(2)], ids=repr)
def test_sets_that_stop_early(method, layer, device, forced):
    layer.differentiation, layer.steps = method, equipool.ToTolerance(0.1, 12)
    assert layer.solve(*batch(layer, device)).steps.unique().numel() > 1
    assert_as_in_float64(layer, device, plain_loss)
