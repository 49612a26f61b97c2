"""Eigenvalues of each row's Hessian from its products, all of them or the extreme ones."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from equipool.linear_solvers import ROUNDINGS, ConjugateGradients
from equipool.objective import LinearMap

# Random directions that measure the inverse beside the leading ones, by a few steps each.
PROBES, PROBE_STEPS, PROBE_TOLERANCE = 4, 16, 0.01


class Spectrum(NamedTuple):
    r"""A symmetric matrix for each row: $H = V \Lambda V^\top + \rho (I - V V^\top)$."""

    vectors: Tensor  # V, [num_rows, K, r]
    values: Tensor  # the diagonal of Lambda, ascending, [num_rows, r]
    rest: Tensor  # rho, [num_rows]: one value for all directions beside V

    def is_definite(self) -> Tensor:
        """`[num_rows]` whether every eigenvalue is positive, by more than rounding."""
        rounding = ROUNDINGS * torch.finfo(self.values.dtype).eps
        smallest = torch.minimum(self.values[:, 0], self.rest)
        largest = torch.maximum(self.values[:, -1], self.rest)
        return (smallest > rounding * largest) & (largest < torch.inf)

    def inverse(self) -> Tensor:
        r"""$H^{-1}$, `[num_rows, K, K]`."""
        inside = self.vectors @ self.vectors.mT
        unit = torch.eye(inside.shape[-1], dtype=inside.dtype, device=inside.device)
        outside = (unit - inside) / self.rest[:, None, None]
        return (self.vectors / self.values.unsqueeze(-2)) @ self.vectors.mT + outside

    def inverse_along(self, directions: Tensor) -> Tensor:
        r"""$v^\top H^{-1} v$ of `directions [num_rows, M, K]`: `[num_rows, M]`, never negative."""
        inside = (directions @ self.vectors).square()
        outside = (directions.square().sum(-1) - inside.sum(-1)).clamp(min=0)
        return (inside / self.values.unsqueeze(-2)).sum(-1) + outside / self.rest.unsqueeze(-1)

    def times_inverse_root(self, rows: Tensor) -> Tensor:
        r"""$H^{-1/2} v$ of `rows [num_rows, M, K]`. The symmetric root is unique, unlike the
        eigenvectors."""
        along = rows @ self.vectors
        inside, outside = along * self.values.rsqrt().unsqueeze(-2), rows - along @ self.vectors.mT
        return inside @ self.vectors.mT + outside * self.rest.rsqrt()[:, None, None]


def full_spectrum(matrix: Tensor) -> Spectrum:
    """All eigenvalues of `[num_rows, K, K]`."""
    values, vectors = _eigh(matrix)
    return Spectrum(vectors, values, values[:, -1])


def extreme_spectrum(product: LinearMap, like: Tensor, rank: int) -> Spectrum:
    """The Ritz pairs of a Krylov space of this dimension, from products of `[num_rows, K]`, the
    shape of `like`. The extreme eigenvalues converge first,
    at both ends. In all directions beside the space, `rest` gives the inverse its mean, which
    conjugate gradients measure from random vectors.

    The random vectors are the same for every row, so that a row's result does not depend on the
    others. Negative eigenvalues whose directions are not met go unnoticed."""
    generator, size = torch.Generator().manual_seed(0), like.shape[-1]
    draws = torch.randn(rank + PROBES, size, generator=generator, dtype=torch.float64).to(like)
    basis, images = like.new_zeros(*like.shape, rank), like.new_zeros(*like.shape, rank)
    image = torch.zeros_like(like)
    for step in range(rank):
        known = basis[..., :step]
        fresh, following = _beside(known, draws[step].expand_as(like)), _beside(known, image)
        # A space that the matrix maps to itself is complete: begin another one beside it.
        tiny = math.sqrt(torch.finfo(like.dtype).eps) * image.norm(dim=-1, keepdim=True)
        direction = torch.where(following.norm(dim=-1, keepdim=True) > tiny, following, fresh)
        basis[..., step] = torch.nn.functional.normalize(direction, dim=-1)
        image = product(basis[..., step])
        images[..., step] = image
    small = basis.mT @ images
    values, rotation = _eigh((small + small.mT) / 2)
    return Spectrum(basis @ rotation, values, _rest(product, basis, draws[rank:]))


def _rest(product: LinearMap, basis: Tensor, draws: Tensor) -> Tensor:
    """The reciprocal of the inverse's mean beside the basis, `[num_rows]`."""
    solver = ConjugateGradients(PROBE_STEPS, PROBE_TOLERANCE)
    inverse, squares = (basis.new_zeros(basis.shape[0]) for _ in range(2))
    for draw in draws:
        probe = _beside(basis, draw.expand(basis.shape[:-1]))
        solved = solver.attempt(lambda v: _beside(basis, product(v)), probe).x
        inverse += torch.linalg.vecdot(probe, solved)
        squares += torch.linalg.vecdot(probe, probe)
    return squares / inverse


def _beside(basis: Tensor, rows: Tensor) -> Tensor:
    """The part of `rows [num_rows, K]` at right angles to `basis [num_rows, K, r]`; taken twice,
    because of rounding."""
    for _ in range(2):
        rows = rows - (basis @ (basis.mT @ rows.unsqueeze(-1))).squeeze(-1)
    return rows


def _eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, ascending, and eigenvectors. Zeros replace a matrix that is not finite, which
    torch would refuse together with all others."""
    finite = torch.isfinite(matrix).all(-1).all(-1)
    values, vectors = torch.linalg.eigh(torch.where(finite[:, None, None], matrix, 0))
    return values, vectors
