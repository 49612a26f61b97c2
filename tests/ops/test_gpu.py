"""What can only be seen on a GPU."""

import copy

import pytest
import torch

import equipool
from equipool import EquilibriumAggregation, ResNetPotential
from equipool.ops.execution import kernels

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def make(num_sets, channels=300, hidden=(600, 300, 32), num_steps=15):
    torch.manual_seed(0)
    counts = torch.randint(13, 40, (num_sets,))
    index = torch.arange(num_sets).repeat_interleave(counts).cuda()
    x = torch.randn(len(index), channels, device="cuda")
    potential = ResNetPotential(channels, channels, hidden)
    layer = EquilibriumAggregation(channels, channels, potential=potential, steps=num_steps)
    return layer.cuda(), x, index


def gradients(layer, x, index, num_sets):
    x = x.detach().requires_grad_()
    layer.zero_grad()
    y = layer(x, index, dim_size=num_sets)
    weights = torch.linspace(-1, 1, y.numel(), device="cuda").view_as(y)
    y.backward(weights.to(y.dtype))
    return y.detach(), [x.grad, *(p.grad.clone() for p in layer.parameters())]


def error(found, expected):
    """The norm of the difference, relative to that of what is expected."""
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("with_kernels", [True, False])
def test_float32_at_real_size(with_kernels):
    layer, x, index = make(64)
    wide = copy.deepcopy(layer).double()
    wide.potential.factored = False
    y, expected = gradients(wide, x.double(), index, 64)
    with kernels(with_kernels):
        found_y, found = gradients(layer, x, index, 64)
    assert error(found_y, y) < 1e-5
    assert max(error(a, b) for a, b in zip(found, expected, strict=True)) < 1e-4


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_nothing_waits_for_the_device():
    layer, x, index = make(8)
    ptr = torch.searchsorted(index, torch.arange(9, device="cuda"))
    x.requires_grad_()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        layer(x, index, dim_size=8).sum().backward()
        layer(x, ptr=ptr).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_captured_training_step_trains_the_same():
    """Sets of changing sizes in a batch of fixed capacity, replayed; against eager, unpadded."""
    torch.manual_seed(0)
    layer = EquilibriumAggregation(4, 8, steps=4)
    model = torch.nn.ModuleDict({"layer": layer, "head": torch.nn.Linear(8, 1)}).cuda()
    eager = copy.deepcopy(model)
    before = copy.deepcopy(model.state_dict())
    capacity, num_sets = 128, 6
    x = torch.full((capacity, 4), torch.nan, device="cuda")
    index = torch.zeros(capacity, dtype=torch.long, device="cuda")
    mask = torch.zeros(capacity, dtype=torch.bool, device="cuda")

    def make_step(model, batch):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

        def step():
            optimizer.zero_grad(set_to_none=True)
            elements, sets, real = batch()
            y = model["layer"](elements, sets, mask=real, dim_size=num_sets)
            loss = (model["head"](y) - 1).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    mask[:50] = True
    captured = equipool.cuda.capture_step(make_step(model, lambda: (x, index, mask)))
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(before[name])
    for n in (100, 37, 128, 5):
        rows, sets = torch.randn(n, 4, device="cuda"), torch.randint(0, num_sets, (n,)).cuda()
        x.fill_(torch.nan)
        x[:n], index[:n] = rows, sets
        mask.fill_(False)
        mask[:n] = True
        loss = captured()
        expected = make_step(eager, lambda rows=rows, sets=sets: (rows, sets, None))()
        assert torch.allclose(loss, expected, rtol=1e-4)
    for a, b in zip(model.parameters(), eager.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)
