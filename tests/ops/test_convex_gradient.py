"""The convex network's operations against plain loops, autograd and exact eigenvalues."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipool.ops import convex_gradient
from equipool.ops.convex_gradient import (
    ConvexNetwork,
    curvature_weights,
    element_gradients,
    element_values,
    largest_eigenvalues,
)

SIZES = [(3,), (4, 2), (2, 5, 3), (3, 1, 2, 4)]
each_depth = pytest.mark.parametrize("sizes", SIZES)
seeds = st.integers(0, 2**31)


def make_network(sizes, num_elements, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.rand(shape, generator=generator, dtype=torch.float64).to(dtype)

    mixes = tuple(draw(b, a) for a, b in pairwise(sizes))
    return ConvexNetwork(sizes, draw(num_elements, sum(sizes)), mixes)


def make_b(network, seed, scale=2.0):
    generator = torch.Generator().manual_seed(seed + 1)
    shape = network.gates.shape
    return scale * torch.randn(shape, generator=generator, dtype=torch.float64)


@each_depth
@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_gradients_are_those_of_automatic_differentiation(sizes, scale):
    """The larger scale reaches where torch's own softplus is cut off."""
    network = make_network(sizes, 6)
    b = make_b(network, 0, scale).requires_grad_()
    (expected,) = torch.autograd.grad(element_values(network, b).sum(), b)
    assert torch.allclose(element_gradients(network, b), expected, rtol=1e-13, atol=1e-15)


def test_no_jump_where_softplus_becomes_straight():
    network = ConvexNetwork((1,), torch.ones(6, 1, dtype=torch.float64), ())
    b = torch.tensor([20.0, 40.0]).double().repeat_interleave(3).view(-1, 1)
    b = b + torch.tensor([-1e-6, 0, 1e-6]).double().repeat(2).view(-1, 1)
    below, at, above = element_values(network, b).view(2, 3).unbind(-1)
    assert torch.allclose((above + below) / 2, at, rtol=1e-15, atol=0)


def hessians(network, b, matrix):
    """The Hessian by y at each element, `[N, K, K]`: `b` changes by `matrix y`."""

    def value(y, gates, b):
        one = network._replace(gates=gates.unsqueeze(0))
        return element_values(one, (b + matrix @ y).unsqueeze(0)).squeeze(0)

    zero = torch.zeros(matrix.shape[1], dtype=matrix.dtype)
    return torch.func.vmap(torch.func.hessian(value), (None, 0, 0))(zero, network.gates, b)


@each_depth
@given(seeds, st.sampled_from([0.1, 1.0, 10.0]))
def test_the_weighted_square_exceeds_every_hessian(sizes, seed, scale):
    """As matrices, not only in the largest eigenvalue; whatever the other units' slopes are."""
    network = make_network(sizes, 20, seed)
    generator = torch.Generator().manual_seed(seed + 2)
    matrix = torch.randn(sum(sizes), 3, generator=generator, dtype=torch.float64)
    weights = curvature_weights(network, matrix)
    bound = matrix.T @ (weights.unsqueeze(-1) * matrix)
    slack = torch.linalg.eigvalsh(bound - hessians(network, make_b(network, seed, scale), matrix))
    assert slack.min() > -1e-12


def test_the_weights_of_one_layer_are_exact():
    """All units at their steepest at once."""
    network = make_network((4,), 3)
    matrix = torch.randn(4, 2, dtype=torch.float64)
    weights = curvature_weights(network, matrix)
    bound = matrix.T @ (weights.unsqueeze(-1) * matrix)
    assert torch.allclose(bound, hessians(network, torch.zeros(3, 4).double(), matrix))


def test_a_matrix_with_zeros_has_weights():
    """Units that do not read y at all, and gates that are shut."""
    network = make_network((3, 4), 2)
    network = network._replace(gates=network.gates * torch.tensor([1, 0, 1, 0, 1, 1, 1]))
    matrix = torch.zeros(7, 2, dtype=torch.float64)
    matrix[:2] = 1
    weights = curvature_weights(network, matrix)
    assert torch.isfinite(weights).all()
    bound = matrix.T @ (weights.unsqueeze(-1) * matrix)
    slack = torch.linalg.eigvalsh(bound - hessians(network, make_b(network, 0), matrix))
    assert slack.min() > -1e-12


@pytest.mark.parametrize(
    ("shape", "size"), [((7, 3), 1e-10), ((3, 7), 1e10), ((5, 5), 1.0), ((1, 1), 1.0)]
)
def test_eigenvalues_are_bounded_closely(shape, size, monkeypatch):
    monkeypatch.setattr(convex_gradient, "CHUNK_FLOATS", 2 * min(shape) ** 2)  # 3 chunks
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(shape, generator=generator)
    weights = size * torch.rand(5, shape[0], generator=generator)
    found = largest_eigenvalues(weights, matrix).double()
    grams = matrix.double().T @ (weights.double().unsqueeze(-1) * matrix.double())
    exact = torch.linalg.eigvalsh(grams)[:, -1]
    assert found.shape == (5,)
    assert (found >= exact * (1 - 1e-6)).all()
    assert (found <= exact * min(shape) ** (1 / 64) * (1 + 1e-6)).all()


def test_a_flat_spectrum_is_the_worst_case():
    found = largest_eigenvalues(torch.ones(1, 64), torch.eye(64))
    assert found.item() == pytest.approx(64 ** (1 / 64), rel=1e-5)


def test_rows_that_are_not_finite_or_zero_concern_no_other():
    weights = torch.rand(4, 5)
    matrix = torch.randn(5, 3)
    expected = largest_eigenvalues(weights, matrix)
    weights[1], weights[2] = float("nan"), 0.0
    found = largest_eigenvalues(weights, matrix)
    assert torch.equal(found[[0, 3]], expected[[0, 3]])
    assert found[1].isnan()
    assert 0 <= found[2] < 1e-30
