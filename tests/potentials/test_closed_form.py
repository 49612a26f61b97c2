"""Potentials with a known minimum: the layer's search against the exact answer."""

import doctest
import math
import re
import runpy
import statistics
from pathlib import Path

import pytest
import torch

from cases import assert_near, flatten
from equipool import EquilibriumAggregation, LearnedStart, Nesterov, NoRegularizer, closed_form
from equipool.potentials import Attention, Huber, Max, Mean, Median, PowerSums, Quantile, Sum

DOCS = Path(__file__).parents[2] / "docs"

# A power of two, so that the step taken is the step written here.
STEP = 2.0**-4

MULTISETS = [
    [1.5],
    [-2.0, 0.5, 3.0],
    [4.0, -1.0, 2.5, 2.0],
    [],
    [-3.0, -1.25, -2.5, -0.75, -4.0],
    [1.0, 1.0, -2.0, 3.0, 1.0, 5.0],
    [-1.5, -1.5, -1.5, -1.5],
    [2.0, 0.0, 0.0, 2.0],
]


def make_batch(channels):
    """Each multiset as a set of vectors, its coordinates in different orders, signs and scales."""
    columns = (lambda v: v, lambda v: 0.25 - v, lambda v: v.roll(1) / 2)[:channels]
    tensors = [torch.tensor(values, dtype=torch.float64) for values in MULTISETS]
    return [torch.stack([column(v) for column in columns], dim=-1) for v in tensors]


def pool(layer, sets):
    """The sets pooled in one ragged batch whose elements are interleaved."""
    x, index = flatten(sets)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(3))
    return layer(x[order], index[order], dim_size=len(sets))


def columns_of(sets, y):
    """Every coordinate of every set that has elements, sorted, with what the layer made of it."""
    for x, row in zip(sets, y, strict=True):
        if len(x):
            for c in range(x.shape[1]):
                yield sorted(x[:, c].tolist()), row[c].item()
        else:
            assert (row == 0).all(), "the output of an empty set is the start"


def quantile_interval(values, tau):
    """All points with at least `tau N` elements at or below and `(1 - tau) N` at or above."""
    n = len(values)
    low = min(v for v in values if sum(w <= v for w in values) >= tau * n)
    high = max(v for v in values if sum(w >= v for w in values) >= (1 - tau) * n)
    return low, high


def huber_interval(values, delta):
    """All points where the elements' clipped pulls cancel, by bisection from both sides."""

    def pull(y):
        return sum(max(-delta, min(delta, v - y)) for v in values)

    def bisect(turned):
        low, high = values[0] - 1, values[-1] + 1
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (low, middle) if turned(middle) else (middle, high)
        return low

    return bisect(lambda y: pull(y) < 1e-12), bisect(lambda y: pull(y) < -1e-12)


def sufficient_steps(sets, slope, start):
    """Steps after which descent with kinks has arrived in every coordinate.

    `slope(n)` gives the least slope that the mean of n potentials has outside its minimum, so a
    step of size STEP brings y nearer by `STEP * slope(n)` at least. The way is at most from the
    start to the farthest element.
    """
    steps = 0
    for x in sets:
        if len(x):
            way = (x - start(x)).abs().max().item()
            steps = max(steps, math.ceil(way / (STEP * slope(len(x)))))
    return steps


def from_zero(x):
    return torch.zeros(x.shape[1], dtype=x.dtype)


def assert_within_a_step(values, y, low, high, slope=1.0):
    """Descent with a constant step ends within `STEP * slope` of a minimum, `slope` the largest
    that the mean of the potentials has: from one side of the minima it steps at most that far
    beyond them, and from then on it is either among them or steps back towards them."""
    assert low - STEP * slope <= y <= high + STEP * slope, (values, y, low, high)


@pytest.mark.parametrize("channels", [1, 3])
class TestExactAnswers:
    def test_mean(self, channels):
        sets = make_batch(channels)
        for values, y in columns_of(sets, pool(closed_form.mean(channels), sets)):
            assert y == pytest.approx(statistics.fmean(values), abs=1e-12)

    def test_sum(self, channels):
        sets = make_batch(channels)
        for values, y in columns_of(sets, pool(closed_form.sum(channels), sets)):
            assert y == pytest.approx(math.fsum(values), abs=1e-12)

    def test_median(self, channels):
        sets = make_batch(channels)
        # The slopes of mean |x - y| are (2k - n) / n for k elements below y.
        steps = sufficient_steps(sets, lambda n: (1 if n % 2 else 2) / n, from_zero)
        layer = closed_form.median(channels, learning_rate=STEP, num_steps=steps)
        for values, y in columns_of(sets, pool(layer, sets)):
            low, high = statistics.median_low(values), statistics.median_high(values)
            assert_within_a_step(values, y, low, high)

    def test_max(self, channels):
        sets = make_batch(channels)
        # The slopes of mean max(0, x - y) are -k / n for k elements above y.
        steps = sufficient_steps(sets, lambda n: 1 / n, lambda x: x.amin(0))
        layer = closed_form.max(channels, learning_rate=STEP, num_steps=steps)
        for values, y in columns_of(sets, pool(layer, sets)):
            assert_within_a_step(values, y, values[-1], values[-1])
            assert y >= values[-1], "the search comes from below and ends beyond the last kink"

    @pytest.mark.parametrize("tau", [0.25, 0.5, 0.875])
    def test_quantile(self, channels, tau):
        def slope(n):  # the slopes of the mean pinball are k / n - tau for k elements below y
            return min(abs(k / n - tau) for k in range(n + 1) if k / n != tau)

        sets = make_batch(channels)
        layer = closed_form.quantile(
            channels, tau, learning_rate=STEP, num_steps=sufficient_steps(sets, slope, from_zero)
        )
        for values, y in columns_of(sets, pool(layer, sets)):
            low, high = quantile_interval(values, tau)
            assert_within_a_step(values, y, low, high, slope=max(tau, 1 - tau))

    @pytest.mark.parametrize("delta", [0.5, 1.0, 100.0])
    def test_huber(self, channels, delta):
        sets = make_batch(channels)
        layer = closed_form.huber(channels, delta, num_steps=400)
        # A step of 1 over a curvature of at most 1 never oversteps. While no element is within
        # delta the gradient is at least delta / n, n <= 6: at most 6 * 5 / 0.5 such steps. In all
        # others the gradient shrinks by 1 - 1 / n at least: 340 of them leave e^-56 of it, and the
        # error is at most n times that.
        for values, y in columns_of(sets, pool(layer, sets)):
            low, high = huber_interval(values, delta)
            assert low - 1e-9 <= y <= high + 1e-9, (values, y, low, high)


def test_float32_agrees():
    sets = [x.float() for x in make_batch(2)]
    found = pool(closed_form.huber(2, 1.0), sets)
    assert found.dtype == torch.float32
    assert_near(found.double(), pool(closed_form.huber(2, 1.0), make_batch(2)), 1e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_momentum_leads_to_the_same_minimum(momentum):
    sets = make_batch(2)
    settings = {"momentum": momentum, "num_steps": 80}
    # Each step times the curvature is a half, so the error's factor per step is a half, with
    # momentum the modulus of the roots of z^2 - 0.75 z + 0.25, which is a half as well.
    mean = pool(closed_form.mean(2, learning_rate=0.25, **settings), sets)
    total = pool(closed_form.sum(2, learning_rate=0.5, **settings), sets)
    assert_near(mean, pool(closed_form.mean(2), sets), 1e-12)
    assert_near(total, pool(closed_form.sum(2), sets), 1e-12)


@pytest.mark.parametrize("delta", [2.0**-4, 2.0**-2])
def test_huber_lies_within_delta_of_the_median(delta):
    # At delta above the medians, at least half of the elements pull down with all their might.
    sets = make_batch(2)
    y = pool(closed_form.huber(2, delta, num_steps=1000), sets)
    for values, found in columns_of(sets, y):
        low, high = statistics.median_low(values), statistics.median_high(values)
        assert low - delta <= found <= high + delta


class TestMax:
    negative = torch.tensor([[-3.0], [-1.0], [-2.0]], dtype=torch.float64)

    def test_from_zero_negative_sets_return_zero(self):
        layer = EquilibriumAggregation(
            1, 1, potential=Max(), regularizer=NoRegularizer(), num_steps=50, scaling="mean"
        )
        assert layer.double()(self.negative) == 0

    def test_everything_above_is_a_minimum(self):
        layer = closed_form.max(1)
        for y in (-1.0, 0.0, 7.0):
            assert layer.energy(self.negative, torch.tensor([[y]])) == 0
        assert layer.energy(self.negative, torch.tensor([[-1.5]])) > 0

    def test_start_is_below_every_set(self):
        sets = make_batch(3)
        layer = closed_form.max(3, num_steps=0)
        expected = [x.amin(0) if len(x) else torch.zeros(3) for x in sets]
        assert torch.equal(pool(layer, sets), torch.stack(expected))

    def test_start_ignores_masked_elements(self):
        x = torch.tensor([[5.0], [-9.0], [7.0], [math.nan]])
        index = torch.tensor([0, 0, 1, 1])
        mask = torch.tensor([True, False, True, False])
        layer = closed_form.max(1, num_steps=0)
        assert torch.equal(layer(x, index, mask=mask, dim_size=3), torch.tensor([[5.0], [7], [0]]))

    def test_nan_stays_in_its_set(self):
        x = torch.tensor([[math.nan], [2.0], [-4.0], [-2.0]])
        y = closed_form.max(1)(x, torch.tensor([0, 0, 1, 1]))
        assert torch.isnan(y[0])
        assert -2 <= y[1] <= -2 + 0.01

    def test_output_has_no_gradient_by_x(self):
        x = self.negative.clone().requires_grad_()
        y = closed_form.max(1, num_steps=20)(x)
        (y.sum() + 0 * x.sum()).backward()
        assert (x.grad == 0).all()


LAYERS = {
    "mean": lambda: closed_form.mean(2),
    "sum": lambda: closed_form.sum(2),
    "median": lambda: closed_form.median(2, num_steps=50),
    "max": lambda: closed_form.max(2, num_steps=50),
    "quantile": lambda: closed_form.quantile(2, 0.25, num_steps=50),
    "huber": lambda: closed_form.huber(2, num_steps=50),
    "attention": lambda: closed_form.attention(torch.tensor([0.3, -0.2]).double(), num_steps=50),
    "frechet": lambda: closed_form.frechet_mean(2, euclidean, num_steps=50),
}


def euclidean(x, y):
    return torch.linalg.vector_norm(x - y, dim=-1)


@pytest.mark.parametrize("name", LAYERS)
def test_a_set_alone_gives_what_it_gives_in_a_batch(name):
    sets, layer = make_batch(2), LAYERS[name]()
    together = pool(layer, sets)
    alone = [layer(x)[0] if len(x) else together[i] for i, x in enumerate(sets)]
    assert_near(torch.stack(alone), together, 1e-12)


THIRD = 1 / 3


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (closed_form.mean(2), [[THIRD, THIRD]] * 3),
        (closed_form.sum(2), [[1.0, 1.0]] * 3),
        # Within delta of the minimum are all of (0.1, 0.7, -0.4), and one of (2, -3, 0.5): the
        # minimum is there, at 0.5, and the other two pull with all their might and cancel.
        (closed_form.huber(2, num_steps=200), [[THIRD, 0.0], [THIRD, 0.0], [THIRD, 1.0]]),
    ],
    ids=["mean", "sum", "huber"],
)
def test_gradients_by_x_are_those_of_the_exact_answer(layer, expected):
    x = torch.tensor([[0.1, 2.0], [0.7, -3.0], [-0.4, 0.5]], dtype=torch.float64)
    x.requires_grad_()
    (found,) = torch.autograd.grad(layer(x).sum(), x)
    assert_near(found, torch.tensor(expected, dtype=torch.float64), 1e-12)


class TestAttention:
    query = torch.tensor([0.8, -0.5, 0.3], dtype=torch.float64)

    def layer_for(self, sets, shift, error=1e-12):
        """A layer whose search has arrived: each step multiplies the error by 1 - mean weight."""
        means = [(x @ self.query - shift).exp().mean().item() for x in sets if len(x)]
        assert max(means) < 2, "the step of a half would not converge"
        slowest = max(abs(1 - mean) for mean in means)
        steps = math.ceil(math.log(error) / math.log(slowest))
        return closed_form.attention(self.query, shift=shift, num_steps=steps)

    def sets(self):
        return [x / 4 for x in make_batch(3)]

    def test_is_the_softmax_weighted_mean(self):
        sets = self.sets()
        y = pool(self.layer_for(sets, shift=0.5), sets)
        for x, row in zip(sets, y, strict=True):
            weights = (x @ self.query - 0.5).exp()
            if len(x):
                expected = torch.softmax(x @ self.query, 0) @ x
                assert_near(row, torch.cat([expected, weights.mean()[None]]), 1e-10)
            else:
                assert (row == 0).all()

    def test_is_not_what_the_appendix_says(self):
        x = self.sets()[4]
        y = self.layer_for([x], shift=0.0)(x)[0]
        weighted = ((x @ self.query).exp()[:, None] * x).mean(0)
        assert (y[:-1] - weighted).abs().max() > 0.1
        assert (y[:-1] / y[-1] - torch.softmax(x @ self.query, 0) @ x).abs().max() > 0.1

    def test_shift_keeps_large_scores_in_range(self):
        x = torch.tensor([[1000.0], [999.0], [998.5]])
        query = torch.ones(1)
        lost = closed_form.attention(query).solve(x)
        assert not lost.finite
        assert not lost.converged
        found = closed_form.attention(query, shift=1000.0)(x)[0, :-1]
        # Steps end where they fall below the resolution of float32 at 1000, 6e-5: the error left
        # is that over half the mean weight, 0.53.
        assert_near(found, torch.softmax(x @ query, 0) @ x, 2e-6)

    def test_gradients_are_those_of_softmax(self):
        x = self.sets()[5].requires_grad_()
        layer = self.layer_for([x.detach()], shift=0.5, error=1e-20)
        along = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
        inputs = (x, layer.potential.query)
        found = torch.autograd.grad(layer(x)[0, :-1] @ along, inputs)
        exact = (torch.softmax(x @ layer.potential.query, 0) @ x) @ along
        for a, b in zip(found, torch.autograd.grad(exact, inputs), strict=True):
            assert_near(a, b, 1e-9)

    def test_reset_returns_to_the_given_query(self):
        layer = closed_form.attention(self.query)
        with torch.no_grad():
            layer.potential.query.add_(1)
        layer.reset_parameters()
        assert torch.equal(layer.potential.query, self.query)
        assert list(layer.potential.state_dict()) == ["query"]


class TestFrechetMean:
    def test_euclidean_distance_gives_the_mean(self):
        sets = make_batch(3)
        # Elements meet y in the single and the all-equal set: d is not smooth there, d^2 is.
        y = pool(closed_form.frechet_mean(3, euclidean, num_steps=150), sets)
        assert_near(y, pool(closed_form.mean(3), sets), 1e-12)  # 0.8^150 < 1e-14

    def test_a_rounded_root_trains_with_elements_at_the_start(self):
        def rounded(x, y):
            return ((x - y).square().sum(-1) + 1e-30).sqrt()

        x = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
        closed_form.frechet_mean(2, rounded, num_steps=100).double()(x).sum().backward()
        assert_near(x.grad, torch.full((3, 2), 1 / 3).double(), 1e-6)

    def test_logarithms_give_the_geometric_mean(self):
        sets = [torch.tensor(v).double()[:, None] for v in ([1.0, 4.0], [0.5, 0.5, 2.0], [3.0])]
        layer = closed_form.frechet_mean(
            1,
            lambda x, y: (x.log() - y.log()).abs().sum(-1),
            start=LearnedStart(1, 1.0, learnable=False).double(),
            num_steps=1500,
        )
        # The curvature at the minimum m is 2 / m^2 >= 2 / 9, so the factor is 0.98 at most.
        expected = [statistics.geometric_mean(x.flatten().tolist()) for x in sets]
        assert_near(pool(layer, sets)[:, 0], torch.tensor(expected, dtype=torch.float64), 1e-12)

    def test_angles_are_averaged_across_the_seam(self):
        def arc(x, y):
            return (torch.remainder(x - y + math.pi, 2 * math.pi) - math.pi).abs().sum(-1)

        angles = torch.tensor([[2.9], [-3.0], [-3.1], [3.1]], dtype=torch.float64)
        start = LearnedStart(1, 2.0, learnable=False).double()
        y = closed_form.frechet_mean(1, arc, start=start, num_steps=200)(angles)
        unrolled = torch.remainder(angles, 2 * math.pi).mean()
        assert_near(y[0, 0], unrolled, 1e-12)

    def test_distance_may_be_a_module(self):
        class Mahalanobis(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = torch.nn.Parameter(torch.tensor([1.0, 0.5, 2.0]).double())

            def forward(self, x, y):
                return torch.linalg.vector_norm(self.scale * (x - y), dim=-1)

        sets = make_batch(3)
        layer = closed_form.frechet_mean(3, Mahalanobis(), num_steps=600)
        assert [name for name, _ in layer.named_parameters()] == ["potential.distance.scale"]
        # The curvatures are 2, 0.5 and 8: times 0.1, the slowest factor is 0.95.
        assert_near(pool(layer, sets), pool(closed_form.mean(3), sets), 1e-12)

    def test_hyperbolic_midpoint(self):
        def poincare(x, y):
            room = (1 - x.square().sum(-1)) * (1 - y.square().sum(-1))
            return 2 * torch.asinh(torch.linalg.vector_norm(x - y, dim=-1) / room.sqrt())

        def hyperboloid_midpoint(x):  # the chord's middle, brought back onto the hyperboloid
            square = x.square().sum(-1, keepdim=True)
            lifted = (torch.cat([1 + square, 2 * x], -1) / (1 - square)).sum(0)
            lifted = lifted / (lifted[0] ** 2 - lifted[1:].square().sum()).sqrt()
            return lifted[1:] / (1 + lifted[0])

        x = torch.tensor([[0.6, 0.1], [-0.2, 0.7]], dtype=torch.float64)
        y = closed_form.frechet_mean(2, poincare, learning_rate=0.05, num_steps=300)(x)[0]
        assert_near(y, hyperboloid_midpoint(x), 1e-10)
        assert (y - x.mean(0)).abs().max() > 0.01


class TestErrors:
    @pytest.mark.parametrize("tau", [0.0, 1.0, -0.5, math.nan])
    def test_quantile(self, tau):
        with pytest.raises(ValueError, match=r"tau is .* expected more than 0 and less than 1"):
            Quantile(tau)

    @pytest.mark.parametrize("delta", [0.0, -1.0, math.inf, math.nan])
    def test_huber(self, delta):
        with pytest.raises(ValueError, match=r"delta is .* expected more than 0"):
            Huber(delta)

    @pytest.mark.parametrize("query", [torch.ones(2, 2), torch.ones(0), torch.ones(2).long()])
    def test_attention(self, query):
        with pytest.raises(ValueError, match=r"query has shape .* expected \[C\]"):
            Attention(query)

    @pytest.mark.parametrize(("num_powers", "set_size"), [(0, 3), (3, 0)])
    def test_power_sums(self, num_powers, set_size):
        with pytest.raises(ValueError, match=f"num_powers is {num_powers} and set_size {set_size}"):
            PowerSums(num_powers, set_size)

    @pytest.mark.parametrize("potential", [Mean(), Median(), Max(), Sum(), Huber(), Quantile(0.5)])
    def test_sizes_that_would_broadcast(self, potential):
        layer = EquilibriumAggregation(3, 1, potential=potential, solver=Nesterov(0.1))
        with pytest.raises(ValueError, match="x has 3 channels and y 1, expected out_channels"):
            layer(torch.ones(4, 3))

    @pytest.mark.parametrize("potential", [Attention(torch.ones(3)), PowerSums(3, 3)])
    def test_sizes_that_the_layer_can_check(self, potential):
        with pytest.raises(ValueError, match=r"the potential's .*_channels is"):
            EquilibriumAggregation(3, 3, potential=potential)


class TestPage:
    """The page on closed forms: its examples give what it says, its pictures are what its script
    draws."""

    page = (DOCS / "closed-forms.md").read_text(encoding="utf-8")

    def test_examples(self):
        blocks = re.findall(r"^```pycon\n(.*?)^```", self.page, flags=re.DOTALL | re.MULTILINE)
        examples = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "page", None, 0)
        assert len(examples.examples) > 30
        complaints = []
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        runner.run(examples, out=complaints.append)
        assert not complaints, "".join(complaints)

    def test_pictures(self, tmp_path):
        figures = runpy.run_path(str(DOCS / "figures" / "closed_forms.py"))
        figures["draw_all"](tmp_path)
        drawn = {path.name for path in tmp_path.iterdir()}
        assert drawn == set(re.findall(r"\(figures/(closed-forms-[^)]+)\)", self.page))
        assert all((DOCS / "figures" / name).is_file() for name in drawn)
        assert all(path.stat().st_size < 100_000 for path in tmp_path.iterdir())
        for case in figures["CASES"]:
            y = case.layer(figures["SET"]).item()
            assert abs(y - case.exact) < 0.11, f"the picture of {case.title} ends beside the answer"
