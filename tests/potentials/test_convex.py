"""The convex potential: convex, one minimum, bounded curvature, a certificate, and it learns."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

from cases import SCALINGS, assert_near, flatten, make_sets
from equipool import EquilibriumAggregation, LearnedStart, Nesterov, SquaredNorm
from equipool.energy import Energy
from equipool.layouts import gather_sets
from equipool.ops import segments
from equipool.potentials import ConvexPotential
from equipool.potentials.base import AutogradSum
from equipool.scalings import scaling_weights

SIZES = (3, 1, 0, 6, 2)
HIDDENS = [(5,), (6, 4), (4, 3, 5)]
WEIGHT = 0.3  # of the regulariser

each_depth = pytest.mark.parametrize("hidden", HIDDENS)
each_scaling = pytest.mark.parametrize("scaling", SCALINGS)
seeds = st.integers(0, 2**31)


class Differentiated(ConvexPotential):
    """The same function with a forward of its own, so that its gradient is autograd's."""

    def forward(self, x, y):
        return super().forward(x, y)


def make_potential(hidden=(6, 4), noise=0.3, seed=0, kind=ConvexPotential, channels=(3, 4)):
    """No parameter has a special value, biases and slopes included."""
    torch.manual_seed(seed)
    potential = kind(*channels, hidden).double()
    with torch.no_grad():
        for parameter in potential.parameters():
            parameter.add_(noise * torch.randn_like(parameter))
    return potential


def make_convex_layer(hidden=(6, 4), scaling="log", num_steps=5, channels=(3, 4), **changes):
    potential = make_potential(hidden, channels=channels, **changes)
    return EquilibriumAggregation(
        *channels,
        potential=potential,
        regularizer=SquaredNorm(WEIGHT),
        solver=Nesterov(0.1, 0.7),
        start=LearnedStart(channels[1], 0.1),
        num_steps=num_steps,
        scaling=scaling,
    ).double()


def batch(sizes=SIZES, channels=3, seed=1):
    x, index = flatten(make_sets(sizes, channels, seed=seed))
    return gather_sets(x, index, dim_size=len(sizes))


def draw_y(num_rows, channels=4, scale=1.0, seed=5):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(num_rows, channels, generator=generator, dtype=torch.float64)


def hessians(summed, y):
    """`[num_rows, K, K]`, column by column."""
    product = summed.hessian(y)
    unit = torch.eye(y.shape[1], dtype=y.dtype)
    return torch.stack([product(column.expand_as(y)) for column in unit], -1)


def train_briefly(potential, seed=0):
    """A few steps of Adam that pull the weights away from where they were drawn."""
    x, sets = batch()
    optimizer = torch.optim.Adam(potential.parameters(), lr=0.1)
    for _ in range(10):
        y = draw_y(sets.num_rows, seed=seed)
        loss = (potential.over(x, sets).gradient(y) - y.sin()).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return potential


def plain_potential(potential, x, y):
    """The formula of the docstring, for one element."""
    parameters = dict(potential.named_parameters())
    last = len(potential.hidden) - 1
    rows = parameters["from_y"].split(potential.hidden)
    u = x
    z = None
    for layer in range(last + 1):
        a = parameters[f"shifts.{layer}.weight"] @ u + parameters[f"shifts.{layer}.bias"]
        a = a + rows[layer] @ y
        if layer > 0:
            raw = parameters[f"raw_mixes.{layer - 1}"]
            a = a + torch.log(1 + raw.exp()) / raw.shape[1] @ (g * z)  # noqa: F821
        z = torch.log(1 + a.exp())
        u = parameters[f"features.{layer}.weight"] @ u + parameters[f"features.{layer}.bias"]
        u = u.tanh()
        g = parameters[f"gates.{layer}.weight"] @ u + parameters[f"gates.{layer}.bias"]
        g = 1 / (1 + (-g).exp())
    raw = parameters[f"raw_mixes.{last}"]
    output = torch.log(1 + raw.exp())[0] / raw.shape[1]
    slope = parameters["slope.weight"] @ u + parameters["slope.bias"]
    return output @ (g * z) + slope @ y


@each_depth
def test_forward_is_the_formula(hidden):
    potential = make_potential(hidden)
    x, y = draw_y(5, 3, seed=2), draw_y(5)
    found = potential(x, y)
    assert found.shape == (5,)
    for i in range(5):
        assert torch.allclose(found[i], plain_potential(potential, x[i], y[i]), rtol=1e-12)


@each_depth
@pytest.mark.parametrize("blocks", [False, True], ids=["", "in blocks"])
def test_the_factored_sum_is_the_plain_one(hidden, blocks, monkeypatch):
    if blocks:
        monkeypatch.setattr(segments, "BLOCKED_FROM", 1)
        monkeypatch.setattr(segments, "BLOCK", 2)
    potential = make_potential(hidden)
    x, sets = batch()
    found, expected = potential.over(x, sets), AutogradSum(potential, x, sets)
    for scale in (0.1, 3.0, 30.0):
        y = draw_y(sets.num_rows, scale=scale)
        assert_near(found.value(y), expected.value(y), 1e-12)
        assert_near(found.gradient(y), expected.gradient(y), 1e-12)
        v = draw_y(sets.num_rows, seed=6)
        assert_near(found.hessian(y)(v), expected.hessian(y)(v), 1e-12)


@each_depth
@each_scaling
def test_the_solve_and_its_gradients_are_those_of_the_plain_sum(hidden, scaling):
    x, index = flatten(make_sets(SIZES))
    fast = make_convex_layer(hidden, scaling)
    plain = make_convex_layer(hidden, scaling, kind=Differentiated)
    assert isinstance(plain.potential.over(x, batch()[1]), AutogradSum)
    results = []
    for layer in (fast, plain):
        elements = x.clone().requires_grad_()
        solution = layer.solve(elements, index)
        loss = solution.y.sin().sum() + solution.energy.sum() + solution.aux_loss
        grads = torch.autograd.grad(loss, [elements, *layer.parameters()])
        results.append((solution.y, solution.energy, *grads))
    for found, expected in zip(*results, strict=True):
        assert_near(found, expected, 1e-10)


def test_a_product_with_the_hessian_leaves_no_trace():
    """Neither a graph, nor a change of the direction or of the products to come; nor does it follow
    autocast, as the gradient does not."""
    potential = make_potential().float()
    x, sets = batch()
    summed, y = potential.over(x.float(), sets), draw_y(sets.num_rows).float()
    v = draw_y(sets.num_rows, seed=6).float()
    product, before = summed.hessian(y.requires_grad_()), v.clone()
    first = product(v)
    assert not first.requires_grad
    assert torch.equal(v, before)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(product(v), first)
        assert torch.equal(summed.hessian(y)(v), first)


def test_some_rows_alone():
    potential = make_potential()
    x, sets = batch()
    rows = torch.tensor([0, 2, 3])
    whole, some = potential.over(x, sets), potential.over(x, sets).restrict(rows)
    y = draw_y(sets.num_rows)
    assert_near(some.value(y[rows]), whole.value(y)[rows], 1e-14)
    assert_near(some.gradient(y[rows]), whole.gradient(y)[rows], 1e-14)
    assert_near(some.bounds().upper, whole.bounds().upper[rows], 1e-14)


def test_replaced_layers_are_read_as_they_are():
    potential = make_potential()
    potential.gates[0].register_forward_hook(lambda module, args, output: 2 * output)
    potential.features[0] = nn.Sequential(potential.features[0], nn.Tanh())
    x, sets = batch()
    y = draw_y(sets.num_rows)
    expected = AutogradSum(potential, x, sets).gradient(y)
    assert_near(potential.over(x, sets).gradient(y), expected, 1e-12)


class TestConvexity:
    @each_depth
    @given(seeds, st.floats(0, 2), st.sampled_from([0.1, 1.0, 10.0, 100.0]), st.booleans())
    def test_along_segments(self, hidden, seed, noise, scale, trained):
        potential = make_potential(hidden, noise, seed)
        if trained:
            train_briefly(potential, seed)
        x, a, b = draw_y(50, 3, seed=seed), *(draw_y(50, 4, scale, seed + k) for k in (1, 2))
        with torch.no_grad():
            ends, middle = [potential(x, a), potential(x, b)], potential(x, (a + b) / 2)
        size = max(1.0, float(ends[0].abs().max()), float(ends[1].abs().max()))
        assert (middle <= (ends[0] + ends[1]) / 2 + 1e-13 * size).all()

    def test_not_every_function_of_x_is(self):
        """Convex in y alone: along x it bends both ways."""
        potential = make_potential(noise=1.0)
        a, b = draw_y(200, 3, 3.0, 1), draw_y(200, 3, 3.0, 2)
        y = draw_y(200)
        bend = (potential(a, y) + potential(b, y)) / 2 - potential((a + b) / 2, y)
        assert bend.min() < -1e-2
        assert bend.max() > 1e-2

    @each_depth
    @given(seeds, st.floats(0, 2), st.sampled_from([0.1, 1.0, 5.0]), st.booleans())
    def test_curvature_is_within_its_bounds(self, hidden, seed, noise, scale, trained):
        potential = make_potential(hidden, noise, seed)
        if trained:
            train_briefly(potential, seed)
        x, sets = batch(seed=seed)
        with torch.no_grad():
            summed = potential.over(x, sets)
        lower, upper = summed.bounds()
        assert lower.shape == upper.shape == (sets.num_rows,)
        assert (lower == 0).all()
        for k in range(20):
            found = hessians(summed, draw_y(sets.num_rows, scale=scale, seed=seed + k))
            assert_near(found, found.mT, 1e-12)
            eigenvalues = torch.linalg.eigvalsh(found)
            rounding = 1e-13 * (1 + upper)
            assert (eigenvalues[:, 0] >= -rounding).all()
            assert (eigenvalues[:, -1] <= upper + rounding).all()

    @pytest.mark.parametrize(
        ("hidden", "noise", "factor"),
        [((64,), 0.0, 1.5), ((64, 64), 0.0, 3.0), ((64, 64), 1.0, 12.0), ((32,) * 3, 0.5, 10.0)],
    )
    def test_the_upper_bound_is_not_absurd(self, hidden, noise, factor):
        """Beside the largest curvature at random points, which is less than the largest of all."""
        potential = make_potential(hidden, noise)
        x, sets = batch((10, 20, 1))
        with torch.no_grad():
            summed = potential.over(x, sets)
        points = [draw_y(3, scale=s, seed=k) for k in range(30) for s in (0.1, 0.5, 1.0, 3.0)]
        found = torch.stack([torch.linalg.eigvalsh(hessians(summed, y))[:, -1] for y in points])
        assert (summed.bounds().upper <= factor * found.amax(0)).all()

    def test_bounds_have_no_graph_and_no_neighbours(self):
        potential = make_potential()
        x, sets = batch()
        expected = potential.over(x, sets).bounds().upper
        assert not expected.requires_grad
        assert expected[2] < 1e-30  # the empty set
        x = x.clone()
        x[0] = float("nan")
        found = potential.over(x, sets).bounds().upper
        assert torch.equal(found[1:], expected[1:])


def make_energy(scaling, hidden=(6, 4), seed=0, noise=0.5):
    """The energy of a batch, and its curvature from below and above: `[num_rows, 1]` each."""
    potential = make_potential(hidden, noise, seed)
    x, sets = batch((3, 1, 8, 2), seed=seed)
    weights = scaling_weights(scaling, sets.counts, torch.float64)
    with torch.no_grad():
        summed = potential.over(x, sets)
        regularizer = SquaredNorm(WEIGHT, learnable=False).double()
        energy = Energy(summed, regularizer, weights)
    lower = 2 * WEIGHT * weights.regularizer
    return energy, lower, lower + weights.potential * summed.bounds().upper.unsqueeze(-1)


@torch.no_grad()
def minimise_exactly(energy, y):
    """Newton's method, whose steps are halved until the gradient shrinks, in float64."""
    for _ in range(100):
        g = energy.gradient(y)
        size = g.norm(dim=-1, keepdim=True)
        if size.max() < 1e-12:
            return y
        step = torch.linalg.solve(hessians(energy, y), g)
        for _ in range(40):
            worse = energy.gradient(y - step).norm(dim=-1, keepdim=True) >= size
            if not worse.any():
                break
            step = torch.where(worse, step / 2, step)
        y = y - step
    raise AssertionError(f"Newton's method did not converge: {size.flatten()}")


@torch.no_grad()
def descend(energy, upper, y):
    """Plain gradient descent whose step is the inverse of the curvature's upper bound."""
    for _ in range(3000):
        g = energy.gradient(y)
        if g.norm(dim=-1).max() < 1e-11:
            return y
        y = y - g / upper
    raise AssertionError(f"gradient descent did not converge: {g.norm(dim=-1)}")


@each_scaling
class TestOneMinimum:
    @each_depth
    def test_from_anywhere_by_a_step_of_the_bound(self, scaling, hidden):
        energy, _, upper = make_energy(scaling, hidden)
        ends = [descend(energy, upper, draw_y(4, scale=10.0, seed=seed)) for seed in (1, 2)]
        assert_near(ends[0], ends[1], 1e-10)
        assert_near(ends[0], minimise_exactly(energy, draw_y(4)), 1e-10)

    @given(seeds, st.sampled_from([0.1, 1.0, 10.0]))
    def test_every_step_lowers_the_energy_as_much_as_it_must(self, scaling, seed, scale):
        energy, _, upper = make_energy(scaling, seed=seed, noise=1.0)
        y = draw_y(4, scale=scale, seed=seed)
        for _ in range(20):
            g = energy.gradient(y).detach()
            before, y = energy.value(y), y - g / upper
            promised = g.square().sum(-1) / (2 * upper.squeeze(-1))
            assert (energy.value(y) <= before - promised + 1e-12 * (1 + before.abs())).all()

    @given(seeds, st.sampled_from([0.01, 1.0, 10.0]))
    def test_the_certificate_holds(self, scaling, seed, scale):
        energy, lower, _ = make_energy(scaling, seed=seed)
        best = minimise_exactly(energy, draw_y(4))
        y = best + draw_y(4, scale=scale, seed=seed)
        distance = (y - best).norm(dim=-1)
        promised = energy.gradient(y).norm(dim=-1) / lower.squeeze(-1)
        assert (distance <= promised * (1 + 1e-9)).all()


class TestLayer:
    @each_scaling
    @given(st.lists(st.integers(0, 6), min_size=1, max_size=5), seeds)
    def test_order_and_neighbours_do_not_matter(self, scaling, sizes, seed):
        layer = make_convex_layer(scaling=scaling)
        sets = make_sets(sizes, seed=seed)
        x, index = flatten(sets)
        y = layer(x, index, dim_size=len(sizes))
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        assert_near(layer(x[order], index[order], dim_size=len(sizes)), y, 1e-12)
        assert_near(torch.cat([layer(one) for one in sets]), y, 1e-12)
        longest = max(sizes) + 1
        padded = torch.stack(
            [nn.functional.pad(one, (0, 0, 0, longest - len(one))) for one in sets]
        )
        mask = torch.arange(longest) < torch.tensor(sizes).unsqueeze(-1)
        assert_near(layer(padded, mask=mask), y, 1e-12)

    def test_other_elements_give_another_output(self):
        layer = make_convex_layer()
        (x,) = make_sets([4])
        assert (layer(x) - layer(x[:3])).abs().max() > 1e-3
        assert (layer(x) - layer(2 * x)).abs().max() > 1e-3

    @pytest.mark.parametrize(
        ("hidden", "scaling"), [((3,), "sum"), ((3, 2), "log"), ((2, 2, 3), "mean")]
    )
    def test_gradcheck(self, hidden, scaling):
        self.check(hidden, scaling, gradcheck)

    def test_gradgradcheck(self):
        self.check((2, 2), "log", gradgradcheck)

    def check(self, hidden, scaling, checker):
        layer = make_convex_layer(hidden, scaling, num_steps=2, channels=(2, 2))
        x, index = flatten(make_sets((2, 0, 3), 2))
        names = [name for name, _ in layer.named_parameters()]
        parameters = [p.detach().clone().requires_grad_() for p in layer.parameters()]

        def pool(x, *values):
            named = dict(zip(names, values, strict=True))
            return torch.func.functional_call(layer, named, (x, index))

        assert checker(pool, (x.requires_grad_(), *parameters))

    def test_every_parameter_receives_a_gradient(self):
        """Drawn as they are, and from empty sets: DDP waits for one."""
        layer = EquilibriumAggregation(3, 4, potential=ConvexPotential(3, 4, (6, 4)))
        x, index = flatten(make_sets(SIZES, dtype=torch.float32))
        layer(x, index).square().sum().backward()
        for name, parameter in layer.potential.named_parameters():
            assert parameter.grad.abs().max() > 0, name
        layer.zero_grad()
        layer(x[:0], index[:0], dim_size=2).sum().backward()
        assert all(parameter.grad is not None for parameter in layer.potential.parameters())


class TestPrecision:
    def layers(self):
        exact = make_convex_layer((32, 16))
        x, index = flatten(make_sets(SIZES))
        return exact, x, index

    def test_bfloat16_module(self):
        exact, x, index = self.layers()
        layer = copy.deepcopy(exact).bfloat16()
        solution = layer.solve(x.bfloat16(), index)
        assert solution.y.dtype == torch.bfloat16
        assert solution.energy.dtype == solution.residual.dtype == torch.float32
        assert_near(solution.y.double(), exact(x, index), 0.03)
        solution.y.float().square().sum().backward()
        exact(x, index).square().sum().backward()
        for (name, found), right in zip(layer.named_parameters(), exact.parameters(), strict=True):
            assert found.grad.dtype == torch.bfloat16, name
            assert_near(found.grad.double(), right.grad, 0.1)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("rounded", [False, True], ids=["", "elements rounded"])
    def test_autocast(self, dtype, rounded):
        exact, x, index = self.layers()
        layer = copy.deepcopy(exact).float()
        elements = x.to(dtype) if rounded else x.float()
        with torch.autocast("cpu", dtype):
            solution = layer.solve(elements, index)
        assert solution.y.dtype == elements.dtype
        assert solution.energy.dtype == torch.float32
        expected = exact.solve(x, index)
        assert_near(solution.y.double(), expected.y, 0.03)
        assert_near(solution.energy.double(), expected.energy, 0.03)
        assert (solution.energy.double() - expected.energy).abs().max() > 1e-7  # it was rounded
        solution.y.float().square().sum().backward()
        expected.y.square().sum().backward()
        for (name, found), right in zip(layer.named_parameters(), exact.parameters(), strict=True):
            assert found.grad.dtype == torch.float32, name
            assert_near(found.grad.double(), right.grad, 0.1)

    def test_autocast_leaves_float64_alone(self):
        exact, x, index = self.layers()
        expected = exact(x, index)
        with torch.autocast("cpu", torch.bfloat16):
            assert_near(exact(x, index), expected, 1e-14)

    def test_sums_over_long_sets_keep_their_digits(self):
        """A bfloat16 sum stands still after a few hundred terms; ours is taken in float32."""
        exact = make_potential()
        element = torch.tensor([[0.5, -0.25, 1.0]], dtype=torch.float64)
        x, sets = gather_sets(element.expand(5000, -1))
        y = draw_y(1)
        expected = exact.over(x, sets)
        rounded = copy.deepcopy(exact).bfloat16()
        found = rounded.over(x.bfloat16(), sets)
        one = rounded.read(element.bfloat16()).slope.float()
        assert_near(found.slope / 5000, one, 1e-5)
        assert_near(found.value(y.float()).double() / 5000, expected.value(y) / 5000, 0.02)
        assert_near(found.gradient(y.float()).double() / 5000, expected.gradient(y) / 5000, 0.02)
        assert_near(found.bounds().upper.double() / 5000, expected.bounds().upper / 5000, 0.02)

    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
    def test_without_gradients(self, mode):
        exact, x, index = self.layers()
        expected = exact(x, index)
        with mode():
            y = exact(x, index)
        assert not y.requires_grad
        assert torch.equal(y, expected)


class TestModule:
    @pytest.mark.parametrize("hidden", [(), (3, 0)])
    def test_sizes_are_checked(self, hidden):
        with pytest.raises(ValueError, match=r"hidden is .*, expected at least one size"):
            ConvexPotential(3, 4, hidden)
        with pytest.raises(ValueError, match="in_channels is 3 and out_channels 0"):
            ConvexPotential(3, 0)

    def test_the_layer_refuses_another_size(self):
        with pytest.raises(ValueError, match="potential's out_channels is 4, expected 5"):
            EquilibriumAggregation(3, 5, potential=ConvexPotential(3, 4))

    def test_reset_parameters(self):
        potential = ConvexPotential(3, 4, (6, 4))
        drawn = []
        for _ in range(2):
            with torch.no_grad():
                for parameter in potential.parameters():
                    parameter.fill_(7.0)
            torch.manual_seed(0)
            potential.reset_parameters()
            drawn.append({name: p.detach().clone() for name, p in potential.named_parameters()})
        for name, first in drawn[0].items():
            assert (first != 7).all(), name
            assert torch.equal(first, drawn[1][name]), name

    def test_first_weights(self):
        """Mixes take the mean of their inputs, about; what is linear in y is absent."""
        torch.manual_seed(0)
        potential = ConvexPotential(3, 4)
        for mix in potential.mixes():
            assert (mix > 0).all()
            assert mix.sum(-1).mean().item() == pytest.approx(1, rel=0.1)
        assert potential.from_y.square().sum(-1).mean().item() == pytest.approx(1, rel=0.3)
        x, y = torch.randn(5, 3), torch.randn(5, 4)
        straight = potential.read(x).slope
        assert torch.equal(straight, torch.zeros(5, 4))
        assert (potential(x, y) > 0).all()

    def test_repr(self):
        assert repr(ConvexPotential(3, 4, [6, 4])).startswith(
            "ConvexPotential(\n  3, 4, hidden=(6, 4)\n"
        )


def test_it_learns_a_quantile():
    """Much better than the best constant, and than the best affine function of the mean."""

    def draw(num_sets, seed):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(num_sets, 7, 1, generator=generator).exp()
        return x, x.quantile(0.7, dim=1)

    torch.manual_seed(0)
    layer = EquilibriumAggregation(1, 1, potential=ConvexPotential(1, 1, (16,)), scaling="mean")
    model = nn.Sequential(layer, nn.Linear(1, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(300):
        x, target = draw(128, seed=step)
        loss = (model(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x, target = draw(2000, seed=1000)
    with torch.no_grad():
        error = (model(x) - target).square().mean()
    mean = torch.cat([x.mean(1), torch.ones(2000, 1)], -1)
    by_mean = mean @ torch.linalg.lstsq(mean, target).solution
    assert error < 0.25 * target.var()
    assert error < 0.6 * (by_mean - target).square().mean()
