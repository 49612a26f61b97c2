"""The kernels against the layer in float64: outputs and all gradients, first and second order."""

import copy
from functools import partial

import pytest
import torch

from equipool import EquilibriumAggregation, ResNetPotential, record
from equipool.ops.resnet_gradient import tiles
from equipool.ops.resnet_gradient import triton as host

HIDDEN = [(7,), (5, 3), (8, 8, 8), (20, 9, 3), (16, 16, 5, 5)]


def make_layer(hidden, num_steps=2, reduction="mean"):
    torch.manual_seed(sum(hidden))
    potential = ResNetPotential(3, 6, hidden, reduction)
    layer = EquilibriumAggregation(3, 6, potential=potential, num_steps=num_steps)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return layer


def make_batch(num_elements, num_sets):
    x = torch.randn(num_elements, 3)
    return x, torch.randint(0, num_sets, (num_elements,))


def run(layer, x, index, **call):
    """Output, auxiliary loss and the gradients of x and of all parameters of a scalar of both."""
    x = x.detach().requires_grad_()
    layer.zero_grad()
    with record() as solutions:
        y = layer(x, index, **call)
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype, device=y.device).view_as(y)
    ((weights * y).sum() + 0.1 * solutions.aux_loss).backward()
    return [y.detach(), solutions.aux_loss.detach(), x.grad, *(p.grad for p in layer.parameters())]


def check(layer, x, index, device, tolerance=1e-4, **call):
    """Within what float32 itself is off by, at these badly conditioned layers."""
    wide = copy.deepcopy(layer).double()
    expected = run(wide, x.double(), index, **call)
    on_device = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in call.items()}
    found = run(layer.to(device), x.to(device), index.to(device), **on_device)
    for a, b in zip(found, expected, strict=True):
        scale = b.norm().clamp(min=1e-3)
        assert (a.cpu().double() - b).norm() <= tolerance * scale


@pytest.mark.parametrize("hidden", HIDDEN)
def test_kernels_agree_with_float64(hidden, forced, device):
    check(make_layer(hidden), *make_batch(14, 3), device, dim_size=3)


def test_sum_of_squares(forced, device):
    layer = make_layer((11, 8, 4), reduction="sum", num_steps=1)
    check(layer, *make_batch(12, 3), device, dim_size=3)


@pytest.mark.parametrize(("num_elements", "num_sets"), [(1, 1), (1, 4), (3, 9), (0, 2), (9, 1)])
def test_odd_batches(num_elements, num_sets, forced, device):
    """One element; more sets than elements, so that some are empty; none at all; one set."""
    check(make_layer((9, 5, 3)), *make_batch(num_elements, num_sets), device, dim_size=num_sets)


def test_the_default_dtype_is_not_read(forced, device, request):
    layer, (x, index) = make_layer((5, 3)).to(device), make_batch(10, 3)
    y = [layer(x.to(device), index.to(device), dim_size=3) for _ in range(2)]
    expected = torch.autograd.grad(y[0].square().sum(), tuple(layer.parameters()))
    request.addfinalizer(partial(torch.set_default_dtype, torch.get_default_dtype()))
    torch.set_default_dtype(torch.bfloat16)
    found = torch.autograd.grad(y[1].square().sum(), tuple(layer.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_padding_changes_nothing(forced, device, monkeypatch):
    """Masked elements hold garbage, and stay in the batch as they do on a GPU."""
    monkeypatch.setattr("equipool.layouts.values_are_at_hand", lambda x: False)
    layer, (x, index) = make_layer((9, 5, 3)), make_batch(12, 4)
    mask = torch.arange(12) % 3 > 0
    expected = run(copy.deepcopy(layer).double(), x[mask].double(), index[mask], dim_size=4)
    x = torch.where(mask[:, None], x, torch.nan)
    index = torch.where(mask, index, 99)
    found = run(layer.to(device), x.to(device), index.to(device), mask=mask.to(device), dim_size=4)
    expected[2] = torch.zeros(12, 3).double().index_copy(0, mask.nonzero()[:, 0], expected[2])
    for a, b in zip(found, expected, strict=True):
        assert (a.cpu().double() - b).norm() <= 2e-5 * b.norm().clamp(min=1e-3)


def test_sets_over_many_tiles_and_parts(forced, device, monkeypatch):
    monkeypatch.setattr(host, "LARGEST_PART", 16)
    x, index = make_batch(40, 3)
    assert tiles.tile_size(16) == 4  # so that a set takes several tiles in each of three parts
    check(make_layer((9, 5, 3)), x, index, device, dim_size=3)


def test_every_value_read_was_written(forced, device, monkeypatch):
    """Memory that is handed out uninitialised is full of NaN here."""

    def poisoned(make):
        def made(*args, **kwargs):
            out = make(*args, **kwargs)
            return out.fill_(torch.nan) if out.is_floating_point() else out

        return made

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned(torch.Tensor.new_empty))
    monkeypatch.setattr(torch, "empty_like", poisoned(torch.empty_like))
    check(make_layer((20, 9, 3)), *make_batch(14, 4), device, dim_size=4)


def test_the_same_every_time(forced, device):
    layer, (x, index) = make_layer((20, 9, 3)).to(device), make_batch(16, 3)
    first = run(layer, x.to(device), index.to(device), dim_size=3)
    first = [tensor.clone() for tensor in first]
    second = run(layer, x.to(device), index.to(device), dim_size=3)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_part_of_the_path_alone(forced, device):
    """Backward from an early step must not wait for the steps after it, twice in a row."""
    layer, (x, index) = make_layer((9, 5, 3), num_steps=4), make_batch(12, 4)
    wide = copy.deepcopy(layer).double()
    gradients = []
    for model, elements in ((layer.to(device), x.to(device)), (wide, x.double())):
        path = model.solve(elements, index.to(elements.device), trajectory=True).trajectory
        path[2].sum().backward(retain_graph=True)
        path[4].sum().backward()
        gradients.append([p.grad.cpu().double() for p in model.potential.parameters()])
    for a, b in zip(*gradients, strict=True):
        assert (a - b).norm() <= 2e-5 * b.norm().clamp(min=1e-3)


def test_a_backward_for_other_gradients_leaves_nothing_behind(forced, device):
    layer, (x, index) = make_layer((9, 5, 3)).to(device), make_batch(12, 4)
    weight, momentum = layer.potential.linears[0].weight, layer.solver.raw_momentum.raw
    loss = layer(x.to(device), index.to(device), dim_size=4).square().sum()
    (expected,) = torch.autograd.grad(loss, weight, retain_graph=True)
    torch.autograd.grad(loss, momentum, retain_graph=True)
    (found,) = torch.autograd.grad(loss, weight)
    assert torch.equal(found, expected)


def test_a_second_gradient_is_refused_or_right(forced, device):
    """By `torch.autograd.grad`, which leaves out whatever does not lead to what it is asked for."""
    layer, (x, index) = make_layer((9, 5, 3), num_steps=2).to(device), make_batch(10, 3)
    wide = copy.deepcopy(layer).double()
    x = x.to(device).requires_grad_()

    def second(model, x):
        y = model(x, index.to(x.device), dim_size=3)
        (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return torch.autograd.grad(g.square().sum(), model.potential.linears[0].weight)[0]

    with pytest.raises(RuntimeError, match="factored=False"):
        second(layer, x)
    layer.potential.factored = wide.potential.factored = False
    expected = second(wide, x.detach().double().requires_grad_())
    assert (second(layer, x).double() - expected).norm() <= 1e-4 * expected.norm()


def test_bf16_products(forced, device):
    """Shorter products are close, and sums are not taken in them."""
    layer, (x, index) = make_layer((20, 16, 8)).to(device), make_batch(16, 3)
    exact = layer(x.to(device), index.to(device), dim_size=3)
    with torch.autocast(device, torch.bfloat16):
        short = layer(x.to(device), index.to(device), dim_size=3)
    assert short.dtype == torch.float32
    error = (short - exact).norm() / exact.norm()
    assert 1e-6 < error < 5e-2


def test_a_parameter_changed_before_the_backward_is_noticed(forced, device):
    layer, (x, index) = make_layer((9, 5, 3)).to(device), make_batch(12, 4)
    y = layer(x.to(device), index.to(device), dim_size=4)
    with torch.no_grad():
        layer.potential.norms[0].weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
