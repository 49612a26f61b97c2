"""Precisions, grad modes, function transforms, and what a module must be able to do."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from cases import SCALINGS, Quadratic, assert_near, flatten, make_layer, make_sets
from equipool import (
    ConvexPotential,
    EquilibriumAggregation,
    LearnedStart,
    Nesterov,
    ResNetPotential,
    SquaredNorm,
)

SIZES = (3, 1, 0, 6, 2)
ROUTES = ("factored", "autograd", "convex")
each_route = pytest.mark.parametrize("route", ROUTES)


def layer_by(route, **settings):
    """With a gradient written by hand, or by autograd; or a convex potential."""
    layer = make_layer(**settings, factored=route == "factored")
    if route == "convex":
        layer.potential = ConvexPotential(3, 4, settings.get("hidden", (6, 4))).double()
    return layer


@pytest.fixture
def batch():
    return flatten(make_sets(SIZES))


@pytest.mark.parametrize("factored", [True, False], ids=["factored", "autograd"])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_float32_is_near_float64(batch, scaling, factored):
    x, index = batch
    settings = {"hidden": (32, 16), "scaling": scaling, "learning_rate": 0.02}
    wide = make_layer(**settings, factored=factored)
    y = make_layer(**settings, factored=factored, dtype=torch.float32)(x.float(), index)
    assert y.dtype == torch.float32
    assert_near(y.double(), wide(x, index), 1e-5)


@each_route
def test_bfloat16_module(batch, route):
    """Output and gradients come in the module's precision, near those of float64."""
    x, index = batch
    exact = layer_by(route, hidden=(32, 16))
    layer = copy.deepcopy(exact).bfloat16()
    rounded = x.bfloat16().requires_grad_()
    y = layer(rounded, index)
    assert y.dtype == torch.bfloat16
    x = x.requires_grad_()
    expected = exact(x, index)
    assert_near(y.double(), expected, 0.03)
    y.float().square().sum().backward()
    expected.square().sum().backward()
    assert rounded.grad.dtype == torch.bfloat16
    assert_near(rounded.grad.double(), x.grad, 0.1)
    for name, parameter in layer.named_parameters():
        assert parameter.grad.dtype == torch.bfloat16, name
        assert torch.isfinite(parameter.grad).all(), name
    solution = layer.solve(rounded, index)
    assert solution.energy.dtype == solution.residual.dtype == torch.float32


@each_route
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(batch, dtype, route):
    """Parameters stay in float32, and so do their gradients; so does the output, as x."""
    x, index = batch
    exact = layer_by(route, hidden=(32, 16))
    expected = exact(x, index)
    layer = copy.deepcopy(exact).float()
    elements = x.float().requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        y = layer(elements, index)
        energy = layer.solve(elements, index).energy
    assert y.dtype == torch.float32
    assert energy.dtype == torch.float32
    assert_near(y.double(), expected, 0.03)
    assert (y.double() - expected).abs().max() > 1e-7  # the products were rounded
    y.square().sum().backward()
    expected.square().sum().backward()
    assert elements.grad.dtype == torch.float32
    for (name, found), right in zip(layer.named_parameters(), exact.parameters(), strict=True):
        assert found.grad.dtype == torch.float32, name
        assert_near(found.grad.double(), right.grad, 0.1)


def test_backward_inside_autocast(batch):
    layer = make_layer(dtype=torch.float32)
    x, index = batch[0].float().requires_grad_(), batch[1]
    inputs = [x, *layer.potential.parameters()]
    with torch.autocast("cpu", torch.bfloat16):
        inside = torch.autograd.grad(layer(x, index).sum(), inputs)
        y = layer(x, index)
    for a, b in zip(inside, torch.autograd.grad(y.sum(), inputs), strict=True):
        assert (a - b).norm() <= 0.05 * b.norm()


@each_route
def test_sums_over_long_sets_keep_their_digits_in_half_precision(route):
    """A bfloat16 sum stands still after a few hundred terms; ours is taken in float32."""
    layer = layer_by(route, scaling="sum", num_steps=1, learning_rate=1e-4)
    element = torch.tensor([[0.5, -0.25, 1.0]], dtype=torch.float64)
    x = element.expand(5000, -1)
    exact = layer.solve(x)
    found = copy.deepcopy(layer).bfloat16().solve(x.bfloat16())
    assert found.energy.item() == pytest.approx(exact.energy.item(), rel=0.05)
    assert_near(found.y.double() / exact.y.abs().max(), exact.y / exact.y.abs().max(), 0.1)


@each_route
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(batch, mode, route):
    layer = layer_by(route, start=LearnedStart(4))
    x, index = batch
    x.requires_grad_()
    expected = layer(x, index)
    with mode():
        solution = layer.solve(x, index, trajectory=True)
        y = layer(*flatten(make_sets(SIZES)))  # tensors that were made in the mode
    for found in (y, solution.y, solution.energy, solution.aux_loss, solution.trajectory):
        assert found.grad_fn is None
        assert not found.requires_grad
        assert found.dtype == torch.float64
    assert torch.equal(y, expected)
    assert expected.grad_fn is not None


@each_route
def test_an_ensemble_by_vmap(batch, route):
    layers = [layer_by(route, seed=seed) for seed in range(3)]
    parameters, buffers = torch.func.stack_module_state(layers)
    x, index = batch

    def call(parameters, buffers, x):
        return torch.func.functional_call(layers[0], (parameters, buffers), (x, index))

    together = torch.func.vmap(call, in_dims=(0, 0, None))(parameters, buffers, x)
    assert_near(together, torch.stack([layer(x, index) for layer in layers]), 1e-12)

    def loss(parameters, buffers, x):
        return call(parameters, buffers, x).square().sum()

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(0, 0, None))(parameters, buffers, x)
    for i, layer in enumerate(layers):
        layer(x, index).square().sum().backward()
        for name, parameter in layer.named_parameters():
            assert_near(gradients[name][i], parameter.grad, 1e-12)


@each_route
def test_function_transforms_of_the_whole_layer(batch, route):
    """`torch.func.grad` and `jacrev` agree with `backward`."""
    layer = layer_by(route)
    x, index = batch
    y = layer(x.requires_grad_(), index)
    y.square().sum().backward()
    found = torch.func.grad(lambda x: layer(x, index).square().sum())(x.detach())
    assert_near(found, x.grad, 1e-12)
    jacobian = torch.func.jacrev(lambda x: layer(x, index))(x.detach())
    assert_near(torch.einsum("bk,bknc->nc", 2 * y.detach(), jacobian), x.grad, 1e-12)


def make_everything(potential=None):
    """A layer with every kind of part changed from its default."""
    layer = EquilibriumAggregation(
        3, 4, potential=potential, solver=Nesterov(0.2, 0.6, gtol=1e-3, clip_value=2.0),
        regularizer=SquaredNorm(0.4), start=LearnedStart(4, 0.1), steps=4, scaling="mean",
    )  # fmt: skip
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return layer.double()


def through_pickle(layer):
    return pickle.loads(pickle.dumps(layer))


def through_a_file(layer):
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("again", [copy.deepcopy, through_pickle, through_a_file])
def test_copies(batch, again):
    layer = make_everything()
    layer(*batch).sum().backward()
    layer.zero_grad()
    twin = again(layer)
    assert torch.equal(twin(*batch), layer(*batch))
    assert repr(twin) == repr(layer)
    before = layer(*batch)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1.0)
    assert torch.equal(layer(*batch), before)
    assert not torch.equal(twin(*batch), before)


def test_state_dict_round_trip(batch):
    """Into a layer built with other values, which then has those that were saved."""
    layer = make_everything()
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = EquilibriumAggregation(
        3, 4, solver=Nesterov(0.01, 0.1, gtol=1e-3, clip_value=2.0), regularizer=SquaredNorm(3.0),
        start=LearnedStart(4), steps=4, scaling="mean",
    ).double()  # fmt: skip
    assert not torch.equal(other(*batch), layer(*batch))
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(*batch), layer(*batch))
    assert torch.equal(other.solver.learning_rate, layer.solver.learning_rate)


@pytest.mark.parametrize("kind", [ResNetPotential, ConvexPotential])
def test_reset_parameters(batch, kind):
    layer = make_everything(kind(3, 4))
    values = {name: p.detach().clone() for name, p in layer.named_parameters()}
    torch.manual_seed(3)
    layer.reset_parameters()
    assert layer.solver.learning_rate.item() == pytest.approx(0.2)
    assert layer.solver.momentum.item() == pytest.approx(0.6)
    assert layer.regularizer.weight.item() == pytest.approx(0.4)
    torch.testing.assert_close(layer.start.y, torch.full((4,), 0.1).double())
    for name, parameter in layer.named_parameters():
        assert not torch.equal(parameter, values[name]), name
    y = layer(*batch)
    torch.manual_seed(3)
    layer.reset_parameters()
    assert torch.equal(layer(*batch), y)


def test_deferred_initialisation():
    """Built on the meta device, given memory, then reset: scalars have their values again."""
    with torch.device("meta"):
        layer = EquilibriumAggregation(3, 4, solver=Nesterov(0.3, 0.8))
    layer = layer.to_empty(device="cpu")
    layer.reset_parameters()
    assert layer.solver.learning_rate == torch.tensor(0.3)
    assert layer.solver.momentum == torch.tensor(0.8)
    assert torch.isfinite(layer(torch.randn(5, 3))).all()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(7, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x, y):
        return self.net(torch.cat([x, y], -1)).squeeze(-1).square()


def test_reset_reaches_into_a_users_potential():
    EquilibriumAggregation(3, 3, potential=Quadratic()).reset_parameters()  # which has nothing
    layer = EquilibriumAggregation(3, 4, potential=Net())
    values = [p.detach().clone() for p in layer.potential.parameters()]
    layer.reset_parameters()
    for parameter, value in zip(layer.potential.parameters(), values, strict=True):
        assert not torch.equal(parameter, value)


def test_defaults_are_the_papers():
    layer = EquilibriumAggregation(3, 20)
    assert layer.potential.hidden == (40, 20, 32)
    assert layer.potential.reduction == "mean"
    assert layer.solver.learning_rate == 0.125
    assert layer.solver.momentum == 0.9
    assert isinstance(layer.solver, Nesterov)
    assert (layer.steps.max_steps, layer.scaling) == (10, "log")
    assert torch.equal(layer(torch.zeros(0, 3)), torch.zeros(1, 20))
