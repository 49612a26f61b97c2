"""The kernels of batch normalisation, against torch's own layer on the real rows in float64."""

import copy

import pytest
import torch
from random_norm import random_norm
from torch import nn

from equipool.experiments.molecules.network import norm
from equipool.experiments.molecules.network.norm import RealRows
from forced_kernels import force_kernels


@pytest.fixture
def device():
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def forced(monkeypatch):
    """The kernels serve everywhere: elsewhere than on a GPU, in Triton's interpreter."""
    force_kernels(monkeypatch, norm)
    kernels = pytest.importorskip("equipool.experiments.molecules.network.norm_kernels")
    monkeypatch.setattr(kernels, "RUNS", 4)  # the interpreter is slow


def make(rows, columns, share=0.8, offset=3.0):
    torch.manual_seed(rows)
    mask = torch.rand(rows) < share
    x = offset + 2 * torch.randn(rows, columns)
    x[~mask] = torch.inf
    return random_norm(columns), x, mask, torch.randn(rows, columns)


def run(layer, x, mask, by_y, device, relu=False):
    """What a step computes: rows, gradients, and the layer's state."""
    layer = copy.deepcopy(layer).to(device)
    x = x.detach().to(device, copy=True).requires_grad_()
    y = layer(x, RealRows.of(mask.to(device)), relu)
    y.backward(by_y.to(device, y.dtype))
    found = {"y": y, "by x": x.grad, "by weight": layer.weight.grad, "by bias": layer.bias.grad}
    return {name: value.detach().cpu() for name, value in (found | layer.state_dict()).items()}


def expected(layer, x, mask, by_y, relu=False):
    theirs = nn.BatchNorm1d(x.shape[1]).double()
    theirs.load_state_dict(layer.state_dict())
    x = x.detach().double()[mask].requires_grad_()
    y = torch.relu(theirs(x)) if relu else theirs(x)
    y.backward(by_y.double()[mask])
    found = {"y": y, "by x": x.grad, "by weight": theirs.weight.grad, "by bias": theirs.bias.grad}
    return {name: value.detach() for name, value in (found | theirs.state_dict()).items()}


# A run is 1 row, 1 to 3, exactly 32, and more than one tile; columns are fewer than a tile, one
# tile, and more.
@pytest.mark.parametrize(("rows", "columns"), [(3, 5), (4, 64), (9, 130), (128, 3), (140, 3)])
@pytest.mark.parametrize("relu", [False, True])
def test_they_compute_what_torch_does(rows, columns, relu, device):
    layer, x, mask, by_y = make(rows, columns)
    found = run(layer, x, mask, by_y, device, relu)
    wanted = expected(layer, x, mask, by_y, relu)
    for name, value in wanted.items():
        got = found[name][mask] if name in ("y", "by x") else found[name]
        torch.testing.assert_close(got.double(), value.double(), rtol=1e-5, atol=2e-5, msg=name)
    padding = layer.bias.detach().expand_as(x)[~mask]
    assert torch.equal(found["y"][~mask], padding.relu() if relu else padding)
    assert not found["by x"][~mask].any()


def test_large_means_cost_few_digits(device):
    layer, x, mask, by_y = make(200, 8, offset=3000.0)
    found, wanted = run(layer, x, mask, by_y, device), expected(layer, x, mask, by_y)
    torch.testing.assert_close(found["y"][mask].double(), wanted["y"], rtol=0, atol=1e-3)
    torch.testing.assert_close(
        found["running_var"].double(), wanted["running_var"], rtol=1e-4, atol=0
    )


@pytest.mark.parametrize("number", [0, 1])
def test_too_few_rows_do_no_harm(number, device):
    layer, x, _, by_y = make(6, 4)
    mask = torch.arange(6) < number
    found = run(layer, torch.where(mask[:, None], 2.0, x), mask, by_y, device)
    torch.testing.assert_close(found["y"], layer.bias.detach().expand(6, -1))
    assert found["by x"].isfinite().all()
    assert torch.equal(found["running_mean"], layer.running_mean)
    assert torch.equal(found["running_var"], layer.running_var)
    assert int(found["num_batches_tracked"]) == 1


def test_a_batch_without_rows(device):
    layer, *_ = make(6, 4)
    nothing = torch.zeros(0, 4)
    found = run(layer, nothing, torch.zeros(0, dtype=torch.bool), nothing, device)
    assert found["y"].shape == (0, 4)
    assert not found["by weight"].any()


def test_short_kinds_are_read_and_written(device):
    layer, x, mask, by_y = make(50, 20)
    x = x.bfloat16()
    by_y = by_y.bfloat16().float()
    found, wanted = run(layer, x, mask, by_y, device), expected(layer, x, mask, by_y)
    assert (found["y"].dtype, found["by x"].dtype) == (torch.bfloat16, torch.bfloat16)
    assert found["by weight"].dtype == torch.float32
    for name in ("y", "by x"):
        torch.testing.assert_close(found[name][mask].double(), wanted[name], rtol=0.01, atol=0.02)
    for name in ("by weight", "running_mean", "running_var"):
        torch.testing.assert_close(found[name].double(), wanted[name], rtol=1e-5, atol=1e-4)


def test_rows_need_not_lie_side_by_side(device):
    layer, x, mask, by_y = make(40, 6)
    apart, by_apart = x.T.contiguous().T, by_y.T.contiguous().T
    found, wanted = run(layer, apart, mask, by_apart, device), run(layer, x, mask, by_y, device)
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name


def test_the_sums_are_the_same_every_time(device):
    layer, x, mask, by_y = make(150, 9)
    first, second = (run(layer, x, mask, by_y, device) for _ in range(2))
    for name, value in first.items():
        assert torch.equal(second[name], value), name
