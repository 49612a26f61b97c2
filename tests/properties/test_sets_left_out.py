"""A set that is not finite reaches no other, neither in the output nor in any gradient."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import equipool
from cases import SCALINGS
from equipool import Nesterov
from equipool.ops import derivatives
from equipool.ops.resnet_gradient import torch as torch_gradient
from forced_kernels import force_kernels

SOLVERS = {
    "nesterov": lambda: Nesterov(0.05, 0.5),
    "nesterov with gtol": lambda: Nesterov(0.05, 0.5, gtol=1e-6, clip_value=1e3),
    "heavy ball": lambda: equipool.GradientDescent(0.05, 0.5),
    "gradient descent": lambda: equipool.GradientDescent(0.05),
    "restrained": lambda: equipool.Nesterov(0.05, 0.5, max_step=0.5, curvature_safe=True),
    "safeguarded": lambda: equipool.SafeguardedNesterov(0.05),
    "newton": lambda: equipool.Newton(),
    "polished": lambda: equipool.Newton(after=Nesterov(0.05, 0.5), num_steps=2),
    "strongly convex": equipool.StronglyConvexNesterov,
}
WAYS = {
    "unrolled": equipool.Unrolled,
    "truncated": lambda: equipool.Truncated(2),
    "one step": lambda: equipool.Truncated(1),
    "implicit": lambda: equipool.Implicit(tolerance=1e-1),
}


class Own(nn.Module):
    """A potential of a user's own, which overflows where y is large."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x, y):
        return (self.linear(x) - y).square().sum(-1) + 0.01 * (y.square().sum(-1)).square()


POTENTIALS = {
    "factored": lambda: equipool.ResNetPotential(3, 2, (8, 6, 4)),
    "automatic": lambda: equipool.ResNetPotential(3, 2, (8, 6, 4), factored=False),
    "convex": lambda: equipool.ConvexPotential(3, 2, (6, 4)),
    "own": Own,
}


def make_layer(potential="factored", solver="nesterov", way="unrolled", **options):
    return equipool.EquilibriumAggregation(
        3, 2, potential=POTENTIALS[potential](), solver=SOLVERS[solver](),
        differentiation=WAYS[way](), start=equipool.LearnedStart(2, 0.1),
        **{"steps": 4, **options},
    ).double()  # fmt: skip


def make_batch(sizes, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(sizes), 3, generator=generator, dtype=dtype)
    return x, torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))


def gradients(layer, x, index, kept, call=None, energy=0.01):
    """Of the outputs of the sets that are kept, their energies and the auxiliary loss."""
    x = x.clone().requires_grad_()
    call = call or (lambda x: layer.solve(x, index, dim_size=int(index.max()) + 1))
    solution = call(x)
    weights = torch.linspace(1, 2, 2, dtype=solution.y.dtype)
    loss = (weights * solution.y[kept]).sum() + 0.1 * solution.aux_loss
    if energy:
        loss = loss + energy * solution.energy[kept].sum()
    found = torch.autograd.grad(
        loss, [x, *(p for p in layer.parameters() if p.requires_grad)], allow_unused=True
    )
    return solution, found


def check(layer, x, index, bad, call=None, tolerance=1e-10):
    """With the bad set left out of the loss, gradients are those without it."""
    num_sets = int(index.max()) + 1
    others = [row for row in range(num_sets) if row != bad]
    solution, (by_x, *found) = gradients(layer, x, index, others, call)
    elements = index != bad
    alone = torch.tensor([others.index(int(row)) for row in index[elements]])
    _, (by_rest, *expected) = gradients(layer, x[elements], alone, list(range(len(others))))
    assert not solution.finite[bad]
    assert solution.finite[others].all()
    assert not solution.y[bad].isfinite().all()
    assert torch.equal(by_x[~elements], torch.zeros_like(by_x[~elements]))
    for a, b in zip([by_x[elements], *found], [by_rest, *expected], strict=True):
        if b is not None:
            scale = b.abs().max().clamp(min=1e-3)
            torch.testing.assert_close(a, b, rtol=tolerance, atol=float(tolerance * scale))


sizes = st.lists(st.integers(1, 5), min_size=2, max_size=4)
seeds = st.integers(0, 2**31)
values = st.sampled_from([float("nan"), float("inf"), float("-inf")])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("potential", POTENTIALS)
@given(sizes=sizes, seed=seeds, value=values, data=st.data())
def test_an_element_that_is_not_finite(potential, way, sizes, seed, value, data):
    torch.manual_seed(seed)
    scaling = data.draw(st.sampled_from(SCALINGS))
    layer = make_layer(potential, way=way, scaling=scaling)
    x, index = make_batch(sizes, seed)
    bad = data.draw(st.integers(0, len(sizes) - 1))
    x[(index == bad).nonzero()[0, 0], data.draw(st.integers(0, 2))] = value
    check(layer, x, index, bad)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("way", ["unrolled", "truncated"])
def test_every_solver(solver, way):
    x, index = make_batch((3, 2, 4), 0)
    x[1, 1] = torch.nan
    potential = "convex" if solver == "strongly convex" else "factored"
    check(make_layer(potential, solver, way), x, index, 0)


@pytest.mark.parametrize(
    ("solver", "way"),
    [*(("nesterov", way) for way in WAYS), ("heavy ball", "unrolled"),
     ("gradient descent", "unrolled")],
)  # fmt: skip
@pytest.mark.parametrize("potential", ["factored", "own"])
def test_a_search_that_diverges(potential, solver, way):
    """A set of many elements, whose search runs away, and two others."""
    layer = make_layer(potential, solver, way, scaling="sum", steps=400)
    check(layer, *make_batch((2, 400, 3), 1), 1)


LAYOUTS = ["padded", "flat mask", "ptr"]


@pytest.mark.parametrize("at_hand", [True, False], ids=["dropped", "carried along"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout, at_hand, monkeypatch):
    """On a GPU padding, and sets that are not finite, stay in the batch."""
    if not at_hand:
        monkeypatch.setattr("equipool.sets.values_are_at_hand", lambda x: False)
    sizes = (3, 2, 4)
    x, index = make_batch(sizes, 0)
    x[4, 1] = torch.nan
    layer = make_layer()
    mask = torch.arange(4) < torch.tensor(sizes)[:, None]

    def call(x):
        if layout == "padded":
            padded = x.new_full((3, 4, 3), torch.nan)
            return layer.solve(padded.masked_scatter(mask[..., None], x), mask=mask)
        if layout == "ptr":
            return layer.solve(x, ptr=torch.tensor([0, 3, 5, 9]))
        extended = torch.cat([x, x.new_full((2, 3), torch.nan)])
        real = torch.arange(11) < 9
        return layer.solve(extended, torch.cat([index, index[:2]]), mask=real, dim_size=3)

    check(layer, x, index, 1, call)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, in Triton's interpreter
@pytest.mark.parametrize("trouble", ["element", "divergence"])
@pytest.mark.parametrize("solver", ["nesterov", "restrained"])
def test_kernels(solver, trouble, monkeypatch):
    x, index = make_batch((3, 2, 4), 0)
    layer = make_layer(solver=solver, steps=2)
    if trouble == "element":
        x[4, 1] = torch.nan
    else:
        x[4] = 3.4e38  # finite, and more than sums of it
    expected = gradients(layer, x[index != 1], index[index != 1] // 2, [0, 1], energy=0)[1]
    layer, x = copy.deepcopy(layer).float(), x.float()
    force_kernels(monkeypatch, torch_gradient, derivatives)
    monkeypatch.setattr("equipool.sets.values_are_at_hand", lambda x: False)
    solution, (by_x, *found) = gradients(layer, x, index, [0, 2], energy=0)
    assert not solution.finite[1]
    assert not by_x[index == 1].any()
    for a, b in zip([by_x[index != 1], *found], expected, strict=True):
        if b is not None:
            assert (a.double() - b).norm() <= 2e-3 * b.norm().clamp(min=1e-3)


def test_recorded_losses_leave_them_out():
    """A loss of all sets is NaN, and its gradients are not."""
    layer = make_layer()
    x, index = make_batch((3, 2, 4), 0)
    others = index != 1
    with equipool.record(diagnostics=True) as expected:
        layer(x[others], index[others] // 2)
    x[4, 1] = torch.nan
    with equipool.record(diagnostics=True) as found:
        loss = layer(x, index).sum()
    torch.testing.assert_close(found.aux_loss, expected.aux_loss)
    assert found[0].occupied.all()
    (loss + found.aux_loss).backward()
    assert loss.isnan()
    assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())
