"""The energy as a negative log posterior: how sure an output is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple, SupportsIndex

import torch
from torch import Tensor

from equipool.aggregation import EquilibriumAggregation
from equipool.checks import as_count, check_part
from equipool.distributed import refuse_sharded
from equipool.energy import Energy, Weights
from equipool.inference import call_on_rows, in_evaluation_mode, inference_context
from equipool.sets import Sets
from equipool.solution import warn_of
from equipool.spectrum import Spectrum, extreme_spectrum, full_spectrum

# Outputs of up to this size get their full covariance by default; larger ones, this rank.
LARGEST_FULL = 128
RANK = 64

# An output counts as near the minimum if that is nearer than this many standard deviations.
NEAR = 0.1


class Interval(NamedTuple):
    """An interval for each value of a function, in the shape that the function returned."""

    centre: Tensor
    lower: Tensor
    upper: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Laplace:
    """The posterior of each set's output, $N(y, T H^{-1})$. Made by `equipool.laplace`, which says
    what $H$ is. Nothing in it has a graph."""

    mean: Tensor
    """`[B, K]` the layer's output y, in the dtype of x; NaN for a set with a value that is not
    finite. What is computed from it is float32 or better."""

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
        square = self.spectrum.inverse_along(self.gradient.unsqueeze(-2)).squeeze(-1)
        return (square / self.temperature).sqrt()

    @property
    def near_minimum(self) -> Tensor:
        """`[B]` whether the search ended near the minimum: a `distance` of at most 0.1. This is not
        the gradient's tolerance, which says little where the energy is flat."""
        return self.distance <= NEAR

    @property
    def covariance(self) -> Tensor:
        """`[B, K, K]`."""
        return self.temperature * self.spectrum.inverse()

    @property
    def variance(self) -> Tensor:
        """`[B, K]`, the diagonal of the covariance."""
        return self.covariance.diagonal(dim1=1, dim2=2)

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw outputs, `[num_samples, B, K]`, in the dtype of the mean.

        Sets are independent of each other.
        """
        shape = self.mean.shape[0], as_count("num_samples", num_samples), self.mean.shape[1]
        dtype, device = self.gradient.dtype, self.gradient.device
        noise = torch.randn(shape, generator=generator, dtype=dtype, device=device)
        deviation = math.sqrt(self.temperature) * self.spectrum.times_inverse_root(noise)
        return (self.mean + deviation.transpose(0, 1)).to(self.mean.dtype)

    def interval(
        self, function: Callable[[Tensor], Tensor], level: float = 0.9, *, noise: float = 0.0
    ) -> Interval:
        r"""An interval for each value of a function of y, such as a head's prediction, by
        linearisation (the delta method): with the function's Jacobian $J$ at y,

        $$f(y) \pm z \sqrt{T \, J H^{-1} J^\top + s^2},$$

        where $z$ is the normal quantile of the level and $s$ the noise. It has no randomness and
        costs one backward pass per value that the function returns for a set. For a probability,
        take the interval of the logit and pass its ends through the sigmoid. For a function that is
        far from linear within a standard deviation, use quantiles of `function` over `sample`.

        Args:
            function: `[B, K] -> [B, ...]`, each set by itself. Switch a network to evaluation mode.
            level: the probability that the interval should cover, between 0 and 1.
            noise: standard deviation of what you compare with around a perfect prediction, such as
                that of the measurements. The posterior is about y and does not contain it.
        """
        quantile = _quantile(level)
        centre, variance = self._linearise(function)
        half = quantile * (variance + noise**2).sqrt()
        return Interval(centre, centre - half, centre + half)

    def fit_temperature(
        self, function: Callable[[Tensor], Tensor], target: Tensor, level: float = 0.9, *,
        noise: float = 0.0,
    ) -> float:  # fmt: skip
        r"""The temperature with which intervals at this level cover the right fraction of targets.

        Call it on the posterior of validation sets, never of test sets, and pass the result to
        `laplace(..., temperature=...)`. To cover the target $t$, an interval needs at least the
        temperature $((t - f(y))^2 / z^2 - s^2) / J H^{-1} J^\top$; the result is the quantile of
        these. This is split conformal prediction with the posterior's deviation as its scale: for
        sets like the validation sets, coverage is right whatever the distribution of the errors. A
        fit by maximum likelihood averages squared errors instead, so that a few large ones make
        most intervals too wide. If the errors are normal, both agree.

        Args:
            function: as in `interval`.
            target: what the function should have returned, in the same shape. Sets whose Hessian is
                not positive definite, and targets that are NaN, are left out.
            level: the fraction of targets to cover.
            noise: as in `interval`.
        """
        quantile = _quantile(level)
        centre, variance = self._linearise(function)
        if target.shape != centre.shape:
            raise ValueError(
                f"target has shape {list(target.shape)}, expected {list(centre.shape)}, that of "
                "what the function returns"
            )
        excess = ((target - centre) / quantile).square() - noise**2
        needed = self.temperature * excess / variance
        needed = needed[~needed.isnan()].double()
        place = math.ceil((needed.numel() + 1) * level)
        if place > needed.numel():
            raise ValueError(
                f"{needed.numel()} targets have an interval, expected at least "
                f"{math.ceil(level / (1 - level))} to fit a temperature at level {level}"
            )
        return float(needed.kthvalue(place).values)

    def _linearise(self, function: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Values of the function at the mean, and their variances."""
        num_sets = self.mean.shape[0]
        with torch.inference_mode(False), torch.enable_grad():
            y = self.mean.clone().requires_grad_()
            values = call_on_rows(function, y)
            columns = values.reshape(num_sets, math.prod(values.shape[1:])).unbind(-1)
            rows = [
                torch.autograd.grad(column.sum(), y, retain_graph=True, materialize_grads=True)[0]
                for column in columns
            ]
        jacobian = torch.stack(rows, dim=-2).to(self.gradient.dtype)
        variance = self.temperature * self.spectrum.inverse_along(jacobian)
        dtype = torch.promote_types(values.dtype, variance.dtype)
        return values.detach().to(dtype), variance.view_as(values)


def laplace(
    layer: EquilibriumAggregation,
    x: Tensor,
    index: Tensor | Sets | None = None,
    *,
    ptr: Tensor | None = None,
    mask: Tensor | None = None,
    dim_size: SupportsIndex | None = None,
    weight: Tensor | None = None,
    rank: int | None = None,
    temperature: float = 1.0,
) -> Laplace:
    r"""How certain the output of each set is. Read the energy as a negative log posterior,
    $-\log p(y \mid X) = R(y) + \sum_i F(x_i, y)$ up to a constant: $R$ is the prior and each
    element one observation. The Laplace approximation is the normal distribution around the
    minimum y with the energy's Hessian as precision,

    $$p(y \mid X) \approx N(y, \; T H^{-1}), \qquad
      H = \nabla^2 R(y) + \sum_i \nabla^2 F(x_i, y).$$

    Each element counts once, or as often as its weight, whatever the layer's scaling: a set with
    every element doubled has the posterior of twice the observations. With the scaling `"mean"`, y
    minimises
    $N R + \sum_i F$, and so the prior is $N R$ there; with `"log-mean"` it is
    $N R / \log_2(N + 1)$. For an empty set it is $R$.

    The layer searches in evaluation mode, without autocast. The result reports whether the search
    ended near the minimum (`near_minimum`) and whether the Hessian is positive definite
    (`definite`). A warning counts the sets that fail either check.

    Args:
        layer: the layer, which is not changed.
        x: elements; `index`, `ptr`, `mask`, `dim_size` and `weight` as in the layer's call.
        rank: with None, the full covariance is computed from K products with the Hessian if K is
            at most 128, and rank 64 is used above. With a rank, as many products find the largest
            and smallest curvatures with their directions (Lanczos), and up to 64 more the mean
            variance in all others. Negative curvature may go unnoticed there.
        temperature: factor of the covariance, see `Laplace.fit_temperature`.

    Example:
        >>> mean = equipool.potentials.FrechetMean(torch.nn.PairwiseDistance())
        >>> layer = equipool.EquilibriumAggregation(
        ...     2, 2, potential=mean, regularizer=0, scaling="mean", solver=equipool.Newton()
        ... )
        >>> posterior = equipool.laplace(layer, torch.randn(50, 2))  # the energy is sum |x - y|^2
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
    refuse_sharded("laplace")
    layer = in_evaluation_mode(layer)
    layout: dict[str, Any] = {"ptr": ptr, "mask": mask, "dim_size": dim_size, "weight": weight}
    with inference_context(x.device):
        y = layer.solve(x, index, **layout).y
        energy = _negative_log(layer.energy(x, index, **layout))
        finite = torch.isfinite(y).all(-1)
        point = torch.where(finite.unsqueeze(-1), y, 0).to(energy.weights.potential.dtype)
        if rank >= size:
            found = full_spectrum(energy.hessian(point))
        else:
            found = extreme_spectrum(energy.hessian_map(point), point, rank)
        definite = finite & found.is_definite()
        values = torch.where(definite.unsqueeze(-1), found.values, torch.nan)
        spectrum = found._replace(values=values, rest=torch.where(definite, found.rest, torch.nan))
        gradient = energy.gradient(point)
        result = Laplace(y, float(temperature), definite, gradient, spectrum)
    warn_of(
        finite & ~definite,
        "sets have a Hessian that is not positive definite, so covariance, samples and intervals "
        "are NaN: search longer, or use a regulariser with curvature, which empty sets need too",
    )
    warn_of(
        definite & ~result.near_minimum,
        f"sets have a minimum more than {NEAR} standard deviations from y: search longer, such as "
        "with layer.steps = ToTolerance(1e-4, max_steps=1000)",
    )
    return result


def _negative_log(energy: Energy) -> Energy:
    """The layer's energy divided by the weight of an element, so that each counts once; the prior
    for an empty set."""
    outer, inner = energy.weights
    occupied = inner > 0
    weights = Weights(torch.where(occupied, outer / inner, 1), occupied.to(inner.dtype))
    return energy.reweighted(weights)


def _quantile(level: float) -> float:
    """How many standard deviations to either side cover this probability."""
    if not 0 < level < 1:
        raise ValueError(f"level is {level!r}, expected a number between 0 and 1")
    return NormalDist().inv_cdf((1 + level) / 2)
