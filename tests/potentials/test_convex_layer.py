"""Layers whose potential is convex: laws, gradients, precisions."""

import copy

import pytest
import torch
from convex_cases import SIZES, draw_y, each_scaling, make_convex_layer, make_potential, seeds
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

from cases import assert_near, flatten, make_sets
from equipool import EquilibriumAggregation
from equipool.potentials import ConvexPotential
from equipool.sets import gather_sets


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

    def check_gradients(self, layer, y, exact, expected):
        assert_near(y.double(), expected, 0.03)
        y.float().square().sum().backward()
        expected.square().sum().backward()
        for (name, found), right in zip(layer.named_parameters(), exact.parameters(), strict=True):
            assert found.grad.dtype == found.dtype, name
            assert_near(found.grad.double(), right.grad, 0.1)

    def test_bfloat16_module(self):
        exact, x, index = self.layers()
        layer = copy.deepcopy(exact).bfloat16()
        solution = layer.solve(x.bfloat16(), index)
        assert solution.y.dtype == torch.bfloat16
        assert solution.energy.dtype == solution.residual.dtype == torch.float32
        self.check_gradients(layer, solution.y, exact, exact(x, index))

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
        assert_near(solution.energy.double(), expected.energy, 0.03)
        assert (solution.energy.double() - expected.energy).abs().max() > 1e-7  # it was rounded
        self.check_gradients(layer, solution.y, exact, expected.y)

    def test_sums_over_long_sets_keep_their_digits(self):
        """A bfloat16 sum stands still after a few hundred terms; ours is taken in float32."""
        exact = make_potential()
        element = torch.tensor([[0.5, -0.25, 1.0]], dtype=torch.float64)
        x, sets = gather_sets(element.expand(5000, -1))
        y = draw_y(1)
        expected = exact.bind(x, sets)
        rounded = copy.deepcopy(exact).bfloat16()
        found = rounded.bind(x.bfloat16(), sets)
        one = rounded.read(element.bfloat16()).slope.float()
        assert_near(found.slope / 5000, one, 1e-5)
        assert_near(found.value(y.float()).double() / 5000, expected.value(y) / 5000, 0.02)
        assert_near(found.gradient(y.float()).double() / 5000, expected.gradient(y) / 5000, 0.02)
        assert_near(found.bounds().upper.double() / 5000, expected.bounds().upper / 5000, 0.02)
