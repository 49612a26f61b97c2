"""Potentials with a known minimum: the layer's search against the exact answer."""

import doctest
import math
import re
import statistics

import pytest
import torch

import known_minima
from cases import assert_near, flatten
from equipool import LearnedStart, SquaredNorm
from equipool.potentials import FrechetMean
from known_minima import Sum, descent
from python_blocks import ROOT

STEP = 2.0**-4
SETS = [
    torch.tensor(values, dtype=torch.float64)[:, None]
    for values in (
        [1.5], [-2.0, 0.5, 3.0], [4.0, -1.0, 2.5, 2.0], [-3.0, -1.25, -2.5, -0.75, -4.0],
        [1.0, 1.0, -2.0, 3.0, 1.0, 5.0], [-1.5, -1.5, -1.5, -1.5], [2.0, 0.0, 0.0, 2.0], [],
    )
]  # fmt: skip


def pooled(layer):
    """The numbers of each set, sorted, with the layer's output for it in one shuffled batch."""
    x, index = flatten(SETS)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(3))
    y = layer(x[order], index[order], dim_size=len(SETS))
    assert y[-1] == 0, "the output of an empty set is the start"
    return [(sorted(x[:, 0].tolist()), row.item()) for x, row in zip(SETS, y, strict=True)][:-1]


def test_mean_and_sum():
    both = {"regularizer": SquaredNorm(0.5), "scaling": "sum"}
    for values, y in pooled(known_minima.mean(1)):
        assert y == pytest.approx(statistics.fmean(values), abs=1e-12)
    for values, y in pooled(descent(Sum(), 1, 1, 1.0, 1, **both).double()):
        assert y == pytest.approx(math.fsum(values), abs=1e-12)


def test_a_kinked_energy_is_left_within_a_step_of_its_minimum():
    for values, y in pooled(known_minima.median(1, STEP, 1000)):
        low, high = statistics.median_low(values), statistics.median_high(values)
        assert low - STEP <= y <= high + STEP


def test_gradients_by_x_are_those_of_the_exact_answer():
    x = torch.tensor([[0.1], [0.7], [-0.4]], dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(known_minima.mean(1)(x).sum(), x)
    assert_near(found, torch.full((3, 1), 1 / 3, dtype=torch.float64), 1e-12)


class TestFrechetMean:
    def test_logarithms_give_the_geometric_mean(self):
        distance = FrechetMean(lambda x, y: (x.log() - y.log()).abs().sum(-1))
        # The curvature at the minimum m is 2 / m^2 >= 2 / 9, so the factor is 0.98 at most.
        layer = descent(distance, 1, 1, 0.1, 1500, start=LearnedStart(1, 1.0)).double()
        for values in ([1.0, 4.0], [0.5, 0.5, 2.0], [3.0]):
            y = layer(torch.tensor(values, dtype=torch.float64)[:, None]).item()
            assert y == pytest.approx(statistics.geometric_mean(values), abs=1e-12)

    def test_a_module_that_trains_with_elements_at_the_start(self):
        class Scaled(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = torch.nn.Parameter(torch.tensor([1.0, 0.5]).double())

            def forward(self, x, y):
                return ((self.scale * (x - y)).square().sum(-1) + 1e-30).sqrt()

        layer = descent(FrechetMean(Scaled()), 2, 2, 0.1, 400)
        assert "potential.distance.scale" in dict(layer.named_parameters())
        x = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
        layer(x).sum().backward()
        assert_near(x.grad, torch.full((3, 2), 1 / 3).double(), 1e-6)


def test_examples_of_the_page():
    page = (ROOT / "docs/closed-forms.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```pycon\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    examples = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "page", None, 0)
    assert len(examples.examples) > 30
    assert doctest.DocTestRunner(verbose=False).run(examples).failed == 0
