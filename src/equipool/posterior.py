"""The energy as a negative log posterior: how sure an output is."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple, SupportsIndex

import torch
from torch import Tensor

from equipool.aggregation import EquilibriumAggregation
from equipool.checks import as_count, check_part
from equipool.energy import Energy
from equipool.layouts import gather_sets
from equipool.linear_solvers import ROUNDINGS
from equipool.objective import LinearMap, assemble
from equipool.scalings import Weights
from equipool.sets import Sets, empty_invalid_sets

# Outputs of up to this size get their full covariance by default; larger ones, this rank.
LARGEST_FULL = 128
RANK = 64

# Random directions that measure the curvature beside the leading ones.
PROBES = 8

# An output counts as converged if the minimum is nearer than this many standard deviations.
NEAR = 0.1

NAMED = 5  # sets that a warning lists


class Interval(NamedTuple):
    """An interval for each value of a function, in the shape that the function returned."""

    centre: Tensor
    lower: Tensor
    upper: Tensor


class Spectrum(NamedTuple):
    """A symmetric matrix for each row: eigenvalues `[num_rows, r]` with their eigenvectors
    `[num_rows, K, r]`, and one number `[num_rows]` for all directions beside them."""

    vectors: Tensor
    values: Tensor
    rest: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Laplace:
    """The posterior of each set's output, $N(y, T H^{-1})$. Made by `equipool.laplace`, which says
    what $H$ is. Nothing in it has a graph."""

    mean: Tensor
    """`[B, K]` the layer's output y; NaN for a set with a value that is not finite."""

    temperature: float
    """$T$, a factor of the covariance."""

    definite: Tensor
    """`[B]` whether the Hessian is positive definite. Where not, covariance, samples and intervals
    are NaN."""

    gradient: Tensor
    """`[B, K]` gradient of the energy $R + \\sum F$ at y: zero at the minimum."""

    spectrum: Spectrum
    """Eigenvalues and eigenvectors of the Hessian; all of them, unless a rank was given."""

    @property
    def distance(self) -> Tensor:
        """`[B]` distance from y to the minimum, estimated by a Newton step, in standard deviations
        of the posterior: $\\sqrt{g^\\top H^{-1} g / T}$ with the gradient $g$. NaN where the
        Hessian is not positive definite."""
        square = self._variance_along(self.gradient.unsqueeze(-2)).squeeze(-1)
        return square.sqrt() / self.temperature

    @property
    def converged(self) -> Tensor:
        """`[B]` whether the search ended near the minimum: a `distance` of at most 0.1. This is not
        the gradient's tolerance, which says little where the energy is flat."""
        return self.distance <= NEAR

    @property
    def covariance(self) -> Tensor:
        """`[B, K, K]`."""
        vectors, values, rest = self.spectrum
        inside = vectors @ vectors.mT
        outside = torch.eye(vectors.shape[-2], dtype=inside.dtype, device=inside.device) - inside
        scaled = vectors / values.unsqueeze(-2)
        return self.temperature * (scaled @ vectors.mT + outside / rest[:, None, None])

    @property
    def variance(self) -> Tensor:
        """`[B, K]`, the diagonal of the covariance."""
        units = torch.eye(self.mean.shape[-1], dtype=self.mean.dtype, device=self.mean.device)
        return self._variance_along(units.expand(self.mean.shape[0], -1, -1))

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw outputs, `[num_samples, B, K]`.

        Sets are independent of each other. Sets draw one after the other: with the same generator
        state, the samples of a set depend on the set, its position in the batch and `num_samples`,
        but not on the other sets.
        """
        num_samples = as_count("num_samples", num_samples)
        vectors, values, rest = self.spectrum
        num_sets, size = self.mean.shape
        noise = self.mean.new_empty(num_samples, num_sets, size)
        for position in range(num_sets):
            torch.randn(num_samples, size, generator=generator, out=noise[:, position])
        # The symmetric root of the covariance: unlike the eigenvectors, it is unique.
        inside = torch.einsum("nbk,bkr->nbr", noise, vectors)
        outside = noise - torch.einsum("nbr,bkr->nbk", inside, vectors)
        spread = torch.einsum("nbr,bkr->nbk", inside * values.rsqrt(), vectors)
        deviation = spread + outside * rest.rsqrt().unsqueeze(-1)
        return self.mean + math.sqrt(self.temperature) * deviation

    def interval(self, function: Callable[[Tensor], Tensor], level: float = 0.9) -> Interval:
        r"""An interval for each value of a function of y, such as a head's prediction, by
        linearisation (the delta method): with the function's Jacobian $J$ at y,

        $$f(y) \pm z \sqrt{T \, J H^{-1} J^\top},$$

        where $z$ is the normal quantile of the level. It has no randomness and costs one backward
        pass per value that the function returns for a set. For a probability, take the interval of
        the logit and pass its ends through the sigmoid. For a function that is far from linear
        within a standard deviation, use quantiles of `function` over `sample`.

        The interval is about y: errors of the function itself, and noise of what it predicts, are
        not in the posterior. `fit_temperature` accounts for them on average.

        Args:
            function: `[B, K] -> [B, ...]`, each set by itself. Switch a network to evaluation mode.
            level: the probability that the interval shall cover, between 0 and 1.
        """
        quantile = _normal_quantile(level)
        centre, variance = self._linearise(function)
        half = quantile * variance.sqrt()
        return Interval(centre, centre - half, centre + half)

    def fit_temperature(
        self, function: Callable[[Tensor], Tensor], target: Tensor, level: float = 0.9
    ) -> float:
        r"""The temperature with which intervals at this level cover the right fraction of targets.

        Call it on the posterior of validation sets, never of test sets, and pass the result to
        `laplace(..., temperature=...)`. Each target $t$ needs at least the temperature
        $(t - f(y))^2 / (z^2 J H^{-1} J^\top)$ to be covered; the result is the quantile of these.
        This is split conformal prediction with the posterior's deviation as its scale: for sets
        like the validation sets, coverage is right whatever the distribution of the errors. A fit
        by maximum likelihood averages the squared errors instead, so a few large ones make most
        intervals too wide. For Gaussian errors both agree.

        Args:
            function: as in `interval`.
            target: what the function should have returned, in the same shape. Sets whose Hessian is
                not positive definite, and targets that are NaN, are left out.
            level: the fraction of targets to cover.
        """
        quantile = _normal_quantile(level)
        centre, variance = self._linearise(function)
        if target.shape != centre.shape:
            raise ValueError(
                f"target has shape {list(target.shape)}, expected {list(centre.shape)}, that of "
                "what the function returns"
            )
        needed = (target - centre).square() / (quantile**2 / self.temperature * variance)
        needed = needed[~needed.isnan()].double()
        place = math.ceil((needed.numel() + 1) * level)
        if place > needed.numel():
            raise ValueError(
                f"{needed.numel()} targets have an interval, expected at least "
                f"{math.ceil(level / (1 - level))} to fit a temperature at level {level}"
            )
        fitted = float(needed.kthvalue(place).values)
        if not 0 < fitted < math.inf:
            raise ValueError(
                f"the temperature would be {fitted}: expected a function that depends on y, and "
                "targets that it does not predict exactly"
            )
        return fitted

    def _linearise(self, function: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Values of the function at the mean, and their variances."""
        num_sets = self.mean.shape[0]
        with torch.inference_mode(False), torch.enable_grad():
            y = self.mean.clone().requires_grad_()
            values = function(y)
            if not isinstance(values, Tensor) or values.shape[:1] != (num_sets,):
                found = f"shape {list(values.shape)}" if isinstance(values, Tensor) else values
                raise ValueError(
                    f"function returned {found} for y of shape {list(y.shape)}, expected a tensor "
                    f"with {num_sets} rows: one for each set"
                )
            columns = values.reshape(num_sets, values[:1].numel()).unbind(-1)
            rows = [
                torch.autograd.grad(column.sum(), y, retain_graph=True)[0] for column in columns
            ]
        jacobian = torch.stack(rows, dim=-2)
        return values.detach(), self._variance_along(jacobian).view_as(values)

    def _variance_along(self, directions: Tensor) -> Tensor:
        """Variance of the products of y with `directions [B, M, K]`: `[B, M]`."""
        vectors, values, rest = self.spectrum
        inside = (directions @ vectors).square()
        outside = (directions.square().sum(-1) - inside.sum(-1)).clamp(min=0)
        total = (inside / values.unsqueeze(-2)).sum(-1) + outside / rest.unsqueeze(-1)
        return self.temperature * total

    def __repr__(self) -> str:
        sets, size = self.mean.shape
        rank = self.spectrum.values.shape[-1]
        counts = f"definite={int(self.definite.sum())}, converged={int(self.converged.sum())}"
        kind = "full" if rank == size else f"rank={rank}"
        return f"Laplace(sets={sets}, {counts}, {kind}, temperature={self.temperature:g})"


def laplace(
    layer: EquilibriumAggregation,
    x: Tensor,
    index: Tensor | Sets | None = None,
    *,
    ptr: Tensor | None = None,
    mask: Tensor | None = None,
    dim_size: SupportsIndex | None = None,
    rank: int | None = None,
    temperature: float = 1.0,
) -> Laplace:
    r"""How sure the output of each set is. Read the energy as a negative log posterior,
    $-\log p(y \mid X) = R(y) + \sum_i F(x_i, y)$ up to a constant: $R$ is the prior and each
    element one observation. The Laplace approximation is the normal distribution around the
    minimum y with the energy's Hessian as precision,

    $$p(y \mid X) \approx N(y, \; T H^{-1}), \qquad
      H = \nabla^2 R(y) + \sum_i \nabla^2 F(x_i, y).$$

    Each element counts once, whatever the layer's scaling: a set with every element doubled has the
    posterior of twice the observations. With the scaling `"mean"`, y minimises
    $N R + \sum_i F$, and so the prior is $N R$ there. An empty set has the prior $R$ alone.

    The layer searches in evaluation mode. The result reports whether the search reached the minimum
    (`converged`) and whether the Hessian is positive definite (`definite`), and a warning names the
    sets where not.

    Args:
        layer: the layer, which is not changed.
        x: elements; `index`, `ptr`, `mask` and `dim_size` describe the sets as in the layer's call.
        rank: None computes the full covariance from K products with the Hessian if K is at most
            128, and uses rank 64 above. With a rank, `rank` products find the largest and smallest
            curvatures with their directions (Lanczos), and a few more the mean curvature of all
            others. Negative curvature in those goes unnoticed.
        temperature: factor of the covariance, see `Laplace.fit_temperature`.

    Example:
        >>> layer = equipool.closed_form.mean(channels=2)  # the energy is sum |x - y|^2
        >>> posterior = equipool.laplace(layer, torch.randn(50, 2))
        >>> posterior.variance  # 1 / (2 * 50)
        tensor([[0.0100, 0.0100]])
        >>> lower, upper = posterior.interval(lambda y: y.sum(-1))[1:]
        >>> upper - lower  # 2 * 1.645 * sqrt(0.02)
        tensor([0.4652])
    """
    check_part("layer", layer, EquilibriumAggregation, "EquilibriumAggregation(3, 8)")
    if not (isinstance(temperature, int | float) and 0 < temperature < math.inf):
        raise ValueError(f"temperature is {temperature!r}, expected a finite number above 0")
    size = layer.out_channels
    if rank is None:
        rank = size if size <= LARGEST_FULL else RANK
    rank = as_count("rank", rank, least=1)
    layer = copy.deepcopy(layer).eval() if layer.training else layer
    with torch.inference_mode(False), torch.no_grad():
        x, sets = gather_sets(x, index, ptr=ptr, mask=mask, dim_size=dim_size)
        y = layer.solve(x, sets).y
        x, sets = empty_invalid_sets(x, sets)
        energy = _posterior_energy(layer, x, sets)
        y = y.to(energy.weights.potential.dtype)
        rows = torch.where(torch.isfinite(y).all(-1, keepdim=True), y, 0)
        if sets.padded:
            rows = torch.cat([rows, rows.new_zeros(1, size)])
        product = energy.hessian(rows)
        found = _full(product, rows) if rank >= size else _low_rank(product, rows, rank)
        spectrum = Spectrum(*(sets.real(part) for part in found))
        gradient = sets.real(energy.gradient(rows))
        finite = torch.isfinite(y).all(-1)
        definite = finite & _is_definite(spectrum)
        values = torch.where(definite.unsqueeze(-1), spectrum.values, torch.nan)
        rest = torch.where(definite, spectrum.rest, torch.nan)
        marked = Spectrum(spectrum.vectors, values, rest)
        result = Laplace(y, float(temperature), definite, gradient, marked)
        _warn(result, finite)
    return result


def _posterior_energy(layer: EquilibriumAggregation, x: Tensor, sets: Sets) -> Energy:
    """The layer's energy divided by the weight of an element, so that each counts once; the prior
    for an empty set."""
    scaled = layer.search(x, sets, layer.steps.budget(training=False)).objective
    assert isinstance(scaled, Energy)
    occupied = (sets.counts > 0).unsqueeze(-1)
    outer, inner = scaled.weights
    weights = Weights(torch.where(occupied, outer / inner, 1), occupied.to(inner.dtype))
    return Energy(scaled.potential, scaled.regularizer, weights, scaled.bound)


def _full(product: LinearMap, like: Tensor) -> Spectrum:
    matrix = assemble(product, like)
    values, vectors = _eigh(matrix)
    return Spectrum(vectors, values, values[:, -1])


def _low_rank(product: LinearMap, like: Tensor, rank: int) -> Spectrum:
    """The Ritz pairs of a Krylov space. Its extreme eigenvalues converge first, at both ends: the
    smallest curvatures are the largest variances. All directions beside it get their mean
    curvature, measured by random probes.

    The space starts at the same random vector for every set, so that a set's result does not depend
    on the batch."""
    generator = torch.Generator().manual_seed(0)
    size = like.shape[-1]
    draws = torch.randn(rank + PROBES, size, generator=generator, dtype=torch.float64).to(like)
    basis, images = (like.new_zeros(*like.shape, rank) for _ in range(2))
    image = torch.zeros_like(like)
    for step in range(rank):
        known = basis[..., :step]
        fresh, following = _beside(known, draws[step].expand_as(like)), _beside(known, image)
        # A space that the Hessian maps to itself is complete: begin another one beside it.
        tiny = math.sqrt(torch.finfo(like.dtype).eps) * image.norm(dim=-1, keepdim=True)
        direction = torch.where(following.norm(dim=-1, keepdim=True) > tiny, following, fresh)
        basis[..., step] = torch.nn.functional.normalize(direction, dim=-1)
        image = product(basis[..., step])
        images[..., step] = image
    small = basis.mT @ images
    values, rotation = _eigh((small + small.mT) / 2)
    probes = [_beside(basis, draw.expand_as(like)) for draw in draws[rank:]]
    along = sum((probe * product(probe)).sum(-1) for probe in probes)
    rest = along / sum(probe.square().sum(-1) for probe in probes)
    return Spectrum(basis @ rotation, values, rest)


def _beside(basis: Tensor, vector: Tensor) -> Tensor:
    """The part of `vector [num_rows, K]` at right angles to `basis [num_rows, K, r]`; twice, for
    rounding."""
    for _ in range(2):
        vector = vector - (basis @ (basis.mT @ vector.unsqueeze(-1))).squeeze(-1)
    return vector


def _eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, ascending, and eigenvectors; zero for a matrix that is not finite, which torch
    refuses for the whole batch."""
    finite = torch.isfinite(matrix).all(-1).all(-1)
    values, vectors = torch.linalg.eigh(torch.where(finite[:, None, None], matrix, 0))
    return values, vectors


def _is_definite(spectrum: Spectrum) -> Tensor:
    """Whether all curvature is more than rounding of the largest."""
    rounding = ROUNDINGS * torch.finfo(spectrum.values.dtype).eps
    smallest = torch.minimum(spectrum.values[:, 0], spectrum.rest)
    largest = torch.maximum(spectrum.values[:, -1], spectrum.rest)
    return (smallest > rounding * largest) & (largest < torch.inf)


def _warn(posterior: Laplace, finite: Tensor) -> None:
    """Name the sets without a posterior, and those whose search did not reach the minimum. Sets
    that are not finite are NaN, as in the layer's output."""
    indefinite = finite & ~posterior.definite
    if bool(indefinite.any()):
        _warn_of(
            indefinite,
            "their Hessian is not positive definite, so covariance, samples and intervals are NaN: "
            "search longer, or use a regulariser with curvature, which empty sets need too",
        )
    away = posterior.definite & ~posterior.converged
    if bool(away.any()):
        largest = float(posterior.distance[away].max())
        _warn_of(
            away,
            f"the minimum is more than {NEAR} standard deviations from y, up to {largest:.2g}: "
            "search longer, such as with layer.steps = ToTolerance(1e-4, max_steps=1000)",
        )


def _warn_of(chosen: Tensor, message: str) -> None:
    numbers = chosen.nonzero().flatten().tolist()
    listed = ", ".join(map(str, numbers[:NAMED])) + (", ..." if len(numbers) > NAMED else "")
    count = f"{len(numbers)} of {chosen.shape[0]} sets ({listed})"
    warnings.warn(f"{count}: {message}", UserWarning, stacklevel=4)


def _normal_quantile(level: float) -> float:
    """How many standard deviations to either side cover this probability."""
    if not 0 < level < 1:
        raise ValueError(f"level is {level!r}, expected a number between 0 and 1")
    return NormalDist().inv_cdf((1 + level) / 2)
