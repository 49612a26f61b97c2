"""The paper's Theorem 1 and its remarks on latent dimensions, on cases small enough to be exact."""

from fractions import Fraction

import torch
from hypothesis import given
from hypothesis import strategies as st

from known_minima import PowerSums, descent

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
