"""What the paper's Theorem 1 and its remarks on latent dimensions say, on cases small enough to be
exact."""

from collections import defaultdict
from fractions import Fraction
from itertools import combinations_with_replacement

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipool import closed_form

LARGEST = 9


def power_sums(values, num_powers):
    return tuple(sum(v**k for v in values) for k in range(1, num_powers + 1))


def recover(sums):
    """The multiset of integers in [-LARGEST, LARGEST] that has these power sums, exactly.

    Newton's identities turn the power sums into the coefficients of prod (t - x_i); its roots,
    divided out one by one, are the elements. Nothing but the sums is looked at.
    """
    elementary = [Fraction(1)]
    for k in range(1, len(sums) + 1):
        terms = ((-1) ** (i - 1) * elementary[k - i] * sums[i - 1] for i in range(1, k + 1))
        elementary.append(sum(terms, Fraction(0)) / k)
    coefficients = [(-1) ** k * e for k, e in enumerate(elementary)]
    found = []
    for root in range(-LARGEST, LARGEST + 1):
        while len(coefficients) > 1:
            quotient = [coefficients[0]]
            for c in coefficients[1:]:
                quotient.append(c + root * quotient[-1])
            if quotient.pop() != 0:
                break
            coefficients = quotient
            found.append(root)
    return found


def column(values):
    return torch.tensor(values, dtype=torch.float64).unsqueeze(-1)


multisets = st.lists(st.integers(-LARGEST, LARGEST), min_size=1, max_size=8)


class TestTheorem1:
    @given(multisets)
    def test_the_power_sums_have_an_inverse(self, values):
        assert recover(power_sums(values, len(values))) == sorted(values)

    @pytest.mark.parametrize("size", [1, 2, 3, 4])
    def test_as_many_power_sums_as_elements_are_needed_and_are_enough(self, size):
        for num_powers in (size, size - 1):
            by_sums = defaultdict(list)
            for values in combinations_with_replacement(range(-5, 7), size):
                by_sums[power_sums(values, num_powers)].append(values)
            assert (max(map(len, by_sums.values())) == 1) == (num_powers == size)

    @given(multisets)
    def test_the_set_is_read_off_the_layers_output(self, values):
        y = closed_form.power_sums(set_size=len(values))(column(values))[0].tolist()
        exact = power_sums(values, len(values))
        # One step and sums of at most 8 terms: a few roundings, relative to the largest term.
        for k, (found, expected) in enumerate(zip(y, exact, strict=True), start=1):
            assert abs(found - expected) <= 1e-14 * sum(abs(v) ** k for v in values)
        # The sums are integers of at most 8 * 9^8 < 2^29, which float64 finds to within a half.
        assert recover([round(v) for v in y]) == sorted(values)

    # Ideal solutions of the Prouhet-Tarry-Escott problem.
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ([0, 3], [1, 2]),
            ([1, 5, 6], [2, 3, 7]),
            ([0, 4, 7, 11], [1, 2, 9, 10]),
            ([0, 4, 8, 16, 17], [1, 2, 10, 14, 18]),
            ([0, 5, 6, 16, 17, 22], [1, 2, 10, 12, 20, 21]),
        ],
    )
    def test_one_latent_dimension_less_is_not_enough_for_power_sums(self, one, other):
        size = len(one)
        assert power_sums(one, size - 1) == power_sums(other, size - 1)
        fewer = closed_form.power_sums(size, num_powers=size - 1)
        enough = closed_form.power_sums(size)
        assert torch.allclose(fewer(column(one)), fewer(column(other)), rtol=1e-13, atol=0)
        gap = (enough(column(one)) - enough(column(other)))[0, -1].abs().item()
        assert round(gap) == abs(power_sums(one, size)[-1] - power_sums(other, size)[-1]) > 0

    def test_a_set_of_another_size_gives_its_mean_powers(self):
        y = closed_form.power_sums(set_size=6)(column([1, 2, 6]))[0]
        expected = torch.tensor([2 * s for s in power_sums([1, 2, 6], 6)], dtype=torch.float64)
        assert torch.allclose(y, expected, rtol=1e-13, atol=0)


# Continuous features of a number for pooling by one sum, among them a random small network.
def network(x):
    generator = torch.Generator().manual_seed(0)
    w, b, v = torch.randn(3, 16, generator=generator, dtype=torch.float64)
    return (torch.tanh(2 * w * x.unsqueeze(-1) + b) * v).sum(-1)


FEATURES = {
    "identity": lambda x: x,
    "square": lambda x: x.square(),
    "sharp exponential": lambda x: torch.exp(20 * x),
    "wave": lambda x: torch.sin(9 * x),
    "network": network,
}


def collision(feature, top=0.8, nudge=0.01):
    """Two pairs of numbers in [0, 1] whose features have the same sum and whose maxima differ.

    Raise the maximum from `top` by a little; the feature then changes by d, less than what it
    varies by over [0, top]. So some u and v there differ by just d in feature, and {top, u} and
    {top + a little, v} have the same sum.
    """
    grid = torch.linspace(0, top, 2001, dtype=torch.float64)
    values = feature(grid)
    spread = values.max() - values.min()
    raised = torch.tensor(top, dtype=torch.float64)
    while True:
        d = feature(raised + nudge) - feature(raised)
        if d.abs() <= spread:
            break
        nudge /= 2
    anchor, other = (
        (values.argmin(), values.argmax()) if d >= 0 else (values.argmax(), values.argmin())
    )
    low, high = grid[anchor], grid[other]
    for _ in range(80):  # bisection for feature(u) = feature(v) + d, with v the anchor
        middle = (low + high) / 2
        short = (feature(middle) - values[anchor] - d) * d.sign() < 0
        low, high = (middle, high) if short else (low, middle)
    return torch.stack([raised, low]), torch.stack([raised + nudge, grid[anchor]])


class TestOneLatentDimension:
    """With one latent number the equilibrium gives the maximum. Pooling one feature by a sum cannot
    tell sets of different maxima apart; here are sets that it confuses."""

    @pytest.mark.parametrize("name", FEATURES)
    def test_a_sum_of_one_feature_confuses_maxima_that_the_equilibrium_tells_apart(self, name):
        feature = FEATURES[name]
        one, other = collision(feature)
        gap = (other.max() - one.max()).item()
        assert gap > 1e-3
        scale = feature(torch.stack([one, other])).abs().max().clamp(min=1)
        assert (feature(one).sum() - feature(other).sum()).abs() < 1e-12 * scale
        step = gap / 4  # the output is at most one step above the maximum
        layer = closed_form.max(1, learning_rate=step, num_steps=round(2 / step))
        with torch.no_grad():
            found = layer(other[:, None]) - layer(one[:, None])
        assert found.shape == (1, 1)
        assert abs(found.item() - gap) <= step
