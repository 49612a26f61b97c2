"""The exact solution, for small sizes."""

from __future__ import annotations

import torch
from torch import Tensor

from equipool.linear_solvers.base import LinearSolution, LinearSolver, exceeds_rounding
from equipool.objective import LinearMap, assemble


class Cholesky(LinearSolver):
    """Assembles each row's matrix of K products and factors it: the exact solution, and a sure
    answer to whether the matrix is positive definite. Holds `[num_rows, K, K]`, so it is for
    outputs of up to a few dozen.

    Args:
        ridge: added to the diagonal of $H$.

    Example:
        >>> Cholesky()(lambda v: 4 * v, torch.tensor([[2.0, 8.0]])).x
        tensor([[0.5000, 2.0000]])
    """

    def attempt(self, product: LinearMap, b: Tensor) -> LinearSolution:
        factor, failure = torch.linalg.cholesky_ex(assemble(product, b))
        x = torch.cholesky_solve(b.unsqueeze(-1), factor).squeeze(-1)
        largest = factor.diagonal(dim1=-2, dim2=-1).square().amax(-1)
        definite = (failure == 0) & exceeds_rounding(x, b, largest)
        return LinearSolution(x, definite, torch.full_like(failure, b.shape[-1], dtype=torch.long))

    def __repr__(self) -> str:
        return f"Cholesky(ridge={self.ridge})"
