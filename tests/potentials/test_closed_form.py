"""Potentials with a known minimum: the layer's search against the exact answer."""

import math
import statistics

import pytest
import torch
from multisets import euclidean, make_batch, pool

from cases import assert_near
from equipool import EquilibriumAggregation, Nesterov, closed_form
from equipool.potentials import Attention, Huber, Max, Mean, Median, PowerSums, Quantile, Sum

# A power of two, so that the step taken is the step written here.
STEP = 2.0**-4


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
            1, 1, potential=Max(), regularizer=0, steps=50, scaling="mean"
        )
        assert layer.double()(self.negative) == 0

    def test_everything_above_is_a_minimum(self):
        layer = closed_form.max(1)
        for y in (-1.0, 0.0, 7.0):
            assert layer.energy(self.negative)(torch.tensor([[y]])) == 0
        assert layer.energy(self.negative)(torch.tensor([[-1.5]])) > 0

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


class TestErrors:
    @pytest.mark.parametrize(
        ("kind", "bad", "message"),
        [
            *((Quantile, (tau,), "tau is") for tau in (0.0, 1.0, -0.5, math.nan)),
            *((Huber, (delta,), "delta is") for delta in (0.0, -1.0, math.inf, math.nan)),
            *((Attention, (query,), "query has shape")
              for query in (torch.ones(2, 2), torch.ones(0), torch.ones(2).long())),
            (PowerSums, (0, 3), "num_powers is 0,"),
            (PowerSums, (3, 0), "set_size is 0,"),
        ],
    )  # fmt: skip
    def test_bad_arguments(self, kind, bad, message):
        with pytest.raises(ValueError, match=f"{message}.* expected"):
            kind(*bad)

    @pytest.mark.parametrize("potential", [Mean(), Median(), Max(), Sum(), Huber(), Quantile(0.5)])
    def test_sizes_that_would_broadcast(self, potential):
        layer = EquilibriumAggregation(3, 1, potential=potential, solver=Nesterov(0.1))
        with pytest.raises(ValueError, match="x has 3 channels and y 1, expected out_channels"):
            layer(torch.ones(4, 3))

    @pytest.mark.parametrize("potential", [Attention(torch.ones(3)), PowerSums(3, 3)])
    def test_sizes_that_the_layer_can_check(self, potential):
        with pytest.raises(ValueError, match=r"the potential's .*_channels is"):
            EquilibriumAggregation(3, 3, potential=potential)
