"""The paper's Theorem 1 and its remarks on latent dimensions, on cases small enough to be exact."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from known_minima import PowerSums, descent, maximum

LARGEST = 9


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


@given(st.lists(st.integers(-LARGEST, LARGEST), min_size=1, max_size=8))
def test_as_many_numbers_as_elements_determine_the_set(values):
    size = len(values)
    layer = descent(PowerSums(size), 1, size, size**2 / 2, 1)
    y = layer(torch.tensor(values, dtype=torch.float64)[:, None])[0].tolist()
    # The sums are integers of at most 8 * 9^8 < 2^29, which float64 finds to within a half.
    assert recover([round(v) for v in y]) == sorted(values)


def network(x):
    generator = torch.Generator().manual_seed(0)
    w, b, v = torch.randn(3, 16, generator=generator, dtype=torch.float64)
    return (torch.tanh(2 * w * x.unsqueeze(-1) + b) * v).sum(-1)


def collision(feature, top=0.8, nudge=0.01):
    """Two pairs of numbers in [0, 1] whose features have the same sum and whose maxima differ.

    Raise the maximum from `top` by a little; the feature then changes by d, less than what it
    varies by over [0, top]. So some u and v there differ by just d in feature, and {top, u} and
    {top + a little, v} have the same sum.
    """
    grid = torch.linspace(0, top, 2001, dtype=torch.float64)
    values = feature(grid)
    raised = torch.tensor(top, dtype=torch.float64)
    while (d := feature(raised + nudge) - feature(raised)).abs() > values.max() - values.min():
        nudge /= 2
    anchor, other = values.argmin(), values.argmax()
    if d < 0:
        anchor, other = other, anchor
    low, high = grid[anchor], grid[other]
    for _ in range(80):  # bisection for feature(u) = feature(v) + d, with v the anchor
        middle = (low + high) / 2
        short = (feature(middle) - values[anchor] - d) * d.sign() < 0
        low, high = (middle, high) if short else (low, middle)
    return torch.stack([raised, low]), torch.stack([raised + nudge, grid[anchor]])


@pytest.mark.parametrize("feature", [lambda x: x, lambda x: torch.exp(20 * x), network])
def test_a_sum_of_one_feature_confuses_maxima_that_the_equilibrium_tells_apart(feature):
    one, other = collision(feature)
    gap = (other.max() - one.max()).item()
    assert gap > 1e-3
    scale = feature(torch.stack([one, other])).abs().max().clamp(min=1)
    assert (feature(one).sum() - feature(other).sum()).abs() < 1e-12 * scale
    step = gap / 4  # the output is at most one step above the maximum
    layer = maximum(1, learning_rate=step, num_steps=round(2 / step))
    with torch.no_grad():
        found = layer(other[:, None]) - layer(one[:, None])
    assert abs(found.item() - gap) <= step
