"""Eigenvalues from products: all of them, and the extreme ones beside a mean."""

import pytest
import torch

from cases import assert_near
from equipool.spectrum import extreme_spectrum, full_spectrum


def matrices(values, num_rows=3, seed=0):
    """Symmetric matrices with these eigenvalues, in random directions."""
    torch.manual_seed(seed)
    size = len(values)
    basis = torch.linalg.qr(torch.randn(num_rows, size, size, dtype=torch.float64)).Q
    return (basis * torch.as_tensor(values, dtype=torch.float64)) @ basis.mT


def spectrum(matrix, rank=None):
    def product(rows):
        return (matrix @ rows.unsqueeze(-1)).squeeze(-1)

    like = matrix[..., 0]
    return full_spectrum(matrix) if rank is None else extreme_spectrum(product, like, rank)


def test_all_of_them():
    matrix = matrices([0.5, 1.0, 3.0, 20.0])
    found = spectrum(matrix)
    assert_near(found.values, torch.tensor([[0.5, 1.0, 3.0, 20.0]] * 3).double(), 1e-12)
    assert_near(found.inverse(), matrix.inverse(), 1e-12)
    rows = torch.randn(3, 5, 4, dtype=torch.float64)
    along = torch.einsum("bmi,bij,bmj->bm", rows, matrix.inverse(), rows)
    assert_near(found.inverse_along(rows), along, 1e-12)
    twice = found.times_inverse_root(found.times_inverse_root(rows))
    assert_near(twice, rows @ matrix.inverse(), 1e-12)


@pytest.mark.parametrize(
    ("values", "rank"),
    [([2.0] * 12, 1), ([2.0] * 12, 3), ([1.0] * 10 + [5.0, 9.0], 3), ([2.0] * 9 + [7.0] * 3, 6)],
)
def test_a_few_directions_beside_equal_ones_are_exact(values, rank):
    """With equal eigenvalues a Krylov space is soon complete, and another one begins."""
    matrix = matrices(values)
    found = spectrum(matrix, rank)
    assert found.vectors.shape == (3, 12, rank)
    assert_near(found.inverse(), matrix.inverse(), 1e-6)
    assert_near(found.vectors.mT @ found.vectors, torch.eye(rank).double().expand(3, -1, -1), 1e-9)


def test_approaches_the_full_inverse_with_the_rank():
    """Eigenvalues over two decades. The trace of the inverse is near at any rank."""
    matrix = matrices(torch.logspace(-1, 1, 40), num_rows=6)
    expected, errors = matrix.inverse(), []
    total = expected.diagonal(dim1=1, dim2=2).sum(-1)
    for rank, limit in ((8, 0.6), (20, 0.4), (36, 0.15)):
        found = spectrum(matrix, rank)
        inverse = found.inverse()
        errors.append(torch.linalg.matrix_norm(inverse - expected).mean())
        assert (inverse.diagonal(dim1=1, dim2=2).sum(-1) / total - 1).abs().max() < limit
        units = torch.eye(40, dtype=torch.float64).expand(6, -1, -1)
        assert_near(found.inverse_along(units), inverse.diagonal(dim1=1, dim2=2), 1e-9)
        root = found.times_inverse_root(units)
        assert_near(root @ root.mT, inverse, 1e-9)
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.4 * torch.linalg.matrix_norm(expected).mean()


def test_both_ends_come_first():
    values = [0.01, *torch.linspace(4, 6, 38).tolist(), 100.0]
    found = spectrum(matrices(values), 12)
    assert_near(found.values[:, 0], torch.full((3,), 0.01).double(), 1e-3)
    assert_near(found.values[:, -1], torch.full((3,), 100.0).double(), 1e-6)
    assert (found.rest - 5).abs().max() < 0.5


@pytest.mark.parametrize("rank", [None, 3])
def test_definite(rank):
    cases = {
        True: [[1e-6, 1.0, 2.0, 3.0]],
        False: [[-3.0, 1.0, 2.0, 3.0], [0.0] * 4, [-1.0] * 4, [1e-18, 1.0, 1.0, 1.0]],
    }
    for expected, found in cases.items():
        for values in found:
            assert (spectrum(matrices(values), rank).is_definite() == expected).all(), values
