"""Linear solvers against dense solutions, and what they do where there is none."""

import pytest
import torch

from equipool.linear_solvers import Cholesky, ConjugateGradients

SOLVERS = {
    "conjugate gradients": ConjugateGradients(tolerance=1e-12),
    "cholesky": Cholesky(),
}
each_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)


def make_matrices(*spectra, seed=0, dtype=torch.float64):
    """One symmetric matrix for each list of eigenvalues."""
    generator = torch.Generator().manual_seed(seed)
    matrices = []
    for spectrum in spectra:
        size = len(spectrum)
        q, _ = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
        matrices.append(q @ torch.diag(torch.tensor(spectrum, dtype=torch.float64)) @ q.T)
    return torch.stack(matrices).to(dtype)


def product_with(matrices):
    return lambda v: torch.einsum("rij,rj->ri", matrices, v)


def make_b(rows, size, seed=3, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, size, generator=generator, dtype=torch.float64).to(dtype)


DEFINITE = make_matrices([1.0, 2.0, 3.0, 20.0], [0.5, 0.5, 0.5, 0.5], [0.1, 1.0, 4.0, 4.0])


@each_solver
def test_solves_each_row(solver):
    b = make_b(3, 4).requires_grad_()
    solution = solver(product_with(DEFINITE), b)
    expected = torch.linalg.solve(DEFINITE, b.detach())
    assert solution.solved.all()
    assert not solution.x.requires_grad
    torch.testing.assert_close(solution.x, expected, rtol=1e-9, atol=1e-10)


@each_solver
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_scales_with_b_far_beyond_what_its_squares_hold(solver, scale):
    """Losses are scaled up for half precision, and gradients of means over millions are small."""
    b, matrices = make_b(3, 4, dtype=torch.float32), DEFINITE.float()
    found = solver(product_with(matrices), scale * b)
    assert found.solved.all()
    torch.testing.assert_close(found.x / scale, torch.linalg.solve(matrices, b), rtol=1e-3, atol=0)


@each_solver
def test_a_matrix_that_is_not_positive_definite_is_not_solved_and_harms_no_other(solver):
    indefinite, negative, definite, unknown = make_matrices(
        [-0.5, 1.0, 2.0, 3.0], [-1.0, -2.0, -3.0, -4.0], [1.0, 1.0, 2.0, 5.0], [1.0] * 4
    )
    matrices = torch.stack([indefinite, definite, negative, definite, unknown * torch.nan])
    b = make_b(5, 4)
    solution = solver(product_with(matrices), b)
    assert solution.solved.tolist() == [False, True, False, True, False]
    assert (solution.x[~solution.solved] == 0).all()
    alone = solver(product_with(matrices[1:2]), b[1:2])
    assert torch.equal(solution.x[1:2], alone.x)
    assert torch.equal(solution.steps[1:2], alone.steps)


@each_solver
@pytest.mark.parametrize("size", [4, 30])
@pytest.mark.parametrize("smallest", [0.0, 0.1, 1.0])
def test_a_singular_matrix_is_not_solved(smallest, size, solver):
    """There is no solution for almost any b, and what rounding makes of it is huge."""
    eps = torch.finfo(torch.float64).eps
    spectrum = [smallest * eps, *torch.linspace(1, 5, size - 1).tolist()]
    matrices = torch.cat([make_matrices(spectrum, seed=seed) for seed in range(10)])
    assert not solver(product_with(matrices), make_b(10, size)).solved.any()


@pytest.mark.parametrize("solver", [ConjugateGradients(), Cholesky()], ids=["cg", "cholesky"])
def test_a_matrix_that_is_far_from_singular_for_its_precision_is_solved(solver):
    spectrum = [1e-3, *torch.linspace(1, 5, 29).tolist()]
    for dtype in (torch.float32, torch.float64):
        matrices = torch.cat([make_matrices(spectrum, seed=seed) for seed in range(40)])
        assert solver(product_with(matrices.to(dtype)), make_b(40, 30, dtype=dtype)).solved.all()


@each_solver
def test_nothing_to_be_solved_is_solved_by_zero(solver):
    """A zero b, whatever the matrix is; or a zero matrix: an empty set has no energy, and nothing
    moves its output."""
    zero = torch.zeros(1, 4, 4, dtype=torch.float64)
    matrices = [DEFINITE[:2], make_matrices([-1.0] * 4), DEFINITE[:1] * torch.nan, zero]
    b = make_b(5, 4)
    b[1:4] = 0
    solution = solver(product_with(torch.cat(matrices)), b)
    assert solution.solved.all()
    assert (solution.x[1:] == 0).all()
    assert (solution.x[0] != 0).all()


@each_solver
def test_what_is_not_finite_or_too_large_is_not_solved(solver):
    b = make_b(4, 4, dtype=torch.float32)
    b[0, 1], b[1, 2], b[2] = torch.inf, torch.nan, 1e38 * b[2].sign()
    solution = solver(lambda v: 1e-3 * v, b)
    assert solution.solved.tolist() == [False, False, False, True]
    assert (solution.x[:3] == 0).all()
    torch.testing.assert_close(solution.x[3], 1e3 * b[3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_that_is_solved_exactly_waits_for_the_others(dtype):
    """Nothing is left of its residual, and nothing is divided by that."""
    matrices = make_matrices([4.0] * 3, [1.0, 2.0, 3.0], dtype=dtype)
    matrices[0] = 4 * torch.eye(3)
    b = torch.tensor([[1.0, 0.5, -0.25], [1.0, 2.0, 3.0]], dtype=dtype)
    solution = ConjugateGradients()(product_with(matrices), b)
    assert solution.solved.all()
    assert solution.steps.tolist() == [1, 3]
    assert torch.equal(solution.x[0], b[0] / 4)


def test_conjugate_gradients_take_a_step_for_each_eigenvalue():
    matrices = make_matrices([2.0] * 4, [1.0, 1.0, 3.0, 3.0], [1.0, 2.0, 3.0, 4.0])
    solution = ConjugateGradients(tolerance=1e-9)(product_with(matrices), make_b(3, 4))
    assert solution.steps.tolist() == [1, 2, 4]


class Liar(Cholesky):
    """Says that it has solved what it has not."""

    def attempt(self, product, b):
        solution = super().attempt(product, b)
        solution.x[0] *= 1.2
        solution.x[1] = torch.inf
        return solution


def test_a_solution_is_checked():
    solution = Liar()(product_with(DEFINITE), make_b(3, 4))
    assert solution.solved.tolist() == [False, False, True]
    assert (solution.x[:2] == 0).all()
