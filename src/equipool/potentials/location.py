"""A convex penalty of each channel by itself, whose minimum is found exactly."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from equipool.checks import check_sizes
from equipool.objective import LinearMap, Minimum
from equipool.ops.derivatives import separate
from equipool.ops.location import locate
from equipool.ops.location.naive import heads_of
from equipool.potentials.base import Potential, SummedPotential, wide
from equipool.sets import Sets

NARROWEST = 1e-3  # width: bounds the number of passes
STEEPEST = 1e-5  # distance of an asymmetry from 0 and 1: keeps the minimum unique
LARGEST_LOGIT = 8.0  # of a weight
FAST = 8.0  # how much faster asymmetries and widths learn than other parameters
LOGIT, WIDTH = 2.0, 0.1  # the outermost asymmetries at first, and all widths


class LocationPotential(Potential):
    r"""Asymmetric, robust distances of learned features, one for each channel of y:

    $$F(x, y) = \sum_k a_k(x)\, \rho(f_k(x) - y_k;\, \tau_k, \delta_k), \qquad
      \rho(u; \tau, \delta) = |\tau - 1_{u < 0}|\; 2 \delta
      \left(\sqrt{\delta^2 + u^2} - \delta\right).$$

    The minimum of a channel lies between the smallest and the largest feature of the set. Wide
    penalties ($\delta \to \infty$) give expectiles: the mean at $\tau = 1/2$, the maximum as
    $\tau \to 1$. Narrow ones ($\delta \to 0$) give quantiles: the median at $\tau = 1/2$. The
    weights $a_k(x) \ge 0$ make it attention. Features, asymmetries $\tau$, widths $\delta$ and
    weights are learned.

    The energy is convex and its channels are independent, so a layer with this potential needs no
    steps of gradient descent: a safeguarded Newton search finds the minimum of each channel to
    rounding, and the gradient is the implicit one, in closed form. The layer then has no
    regulariser, and `solve` reports the Newton passes as `num_steps`.

    Args:
        in_channels: size of an element.
        out_channels: size of a set's output. Channel k is feature `k // asymmetries` at its
            asymmetry `k % asymmetries`.
        asymmetries: how many channels share a feature.
        heads: the number of learned weights of an element, shared by the features; 0 for none.
        features: a module that maps `x [N, in_channels]` to the features `[N, F]`, where F is
            `out_channels / asymmetries`, rounded up; `nn.Identity()` for the elements themselves.
            Default: a linear map.

    Example:
        >>> potential = equipool.LocationPotential(3, 8)
        >>> layer = equipool.EquilibriumAggregation(3, 8, potential=potential)
        >>> layer.solve(torch.randn(5, 3)).converged
        tensor([True])
    """

    regularizer_weight = 0.0
    exact = True

    def __init__(
        self, in_channels: int, out_channels: int, asymmetries: int = 3, heads: int = 0,
        features: nn.Module | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        check_sizes(in_channels=in_channels, out_channels=out_channels, asymmetries=asymmetries)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.num_features = math.ceil(out_channels / asymmetries)
        self.features = nn.Linear(in_channels, self.num_features) if features is None else features
        self.weights = nn.Linear(in_channels, heads) if heads else None
        self.raw_asymmetry = nn.Parameter(torch.empty(asymmetries, self.num_features))
        self.raw_width = nn.Parameter(torch.empty(asymmetries, self.num_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the features again; spread the asymmetries, reset widths and weights."""
        for module in self.features.modules():
            if hasattr(module, "reset_parameters"):
                cast(Callable[[], None], module.reset_parameters)()
        if self.weights is not None:
            nn.init.zeros_(self.weights.weight)
            nn.init.zeros_(self.weights.bias)
        nn.init.constant_(self.raw_width, math.log(WIDTH) / FAST)
        asymmetries = self.raw_asymmetry.shape[0]
        logits = torch.linspace(-LOGIT, LOGIT, asymmetries) if asymmetries > 1 else torch.zeros(1)
        with torch.no_grad():
            self.raw_asymmetry.copy_(logits.unsqueeze(-1) / FAST)

    @property
    def asymmetry(self) -> Tensor:
        r"""$\tau$, `[asymmetries, F]`, between 0 and 1."""
        return STEEPEST + (1 - 2 * STEEPEST) * torch.sigmoid(FAST * wide(self.raw_asymmetry))

    @property
    def width(self) -> Tensor:
        r"""$\delta$, `[asymmetries, F]`, at least 0.001."""
        return NARROWEST + torch.exp(FAST * wide(self.raw_width))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self._penalties(x).of_elements(wide(y)).to(y.dtype)

    def bind(self, x: Tensor, sets: Sets) -> SummedPotential:
        return SummedLocation(self._penalties(x), sets)

    def _penalties(self, x: Tensor) -> Penalties:
        features = self.features(x)
        if features.shape != (x.shape[0], self.num_features):
            raise ValueError(
                f"features returned shape {list(features.shape)}, expected "
                f"[{x.shape[0]}, {self.num_features}]: out_channels / asymmetries, rounded up"
            )
        weights = None
        if self.weights is not None:
            weights = wide(self.weights(x)).clamp(-LARGEST_LOGIT, LARGEST_LOGIT).exp()
        return Penalties(wide(features), self.asymmetry, self.width, weights, self.out_channels)

    def extra_repr(self) -> str:
        heads = 0 if self.weights is None else self.weights.out_features
        asymmetries = self.raw_asymmetry.shape[0]
        return f"{self.in_channels}, {self.out_channels}, {asymmetries}, heads={heads}"


class Penalties(NamedTuple):
    """The penalty of each element as a function of y."""

    features: Tensor  # [N, F]
    asymmetry: Tensor  # [A, F]
    width: Tensor  # [A, F]
    weights: Tensor | None  # [N, H]
    out_channels: int

    def of_elements(self, y: Tensor) -> Tensor:
        """`[N, K] -> [N]`."""
        u, c, width = self._differences(y)
        return (2 * c * width * (torch.hypot(width, u) - width)).sum(-1)

    def slopes(self, y: Tensor) -> Tensor:
        """The derivatives with respect to y, `[N, K]`."""
        u, c, width = self._differences(y)
        return -2 * c * width * u / torch.hypot(width, u)

    def curvatures(self, y: Tensor) -> Tensor:
        """The second derivatives, `[N, K]`."""
        u, c, width = self._differences(y)
        return 2 * c * (1 + (u / width).square()).pow(-1.5)

    def _differences(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`f(x) - y`, its weight and the width of each channel."""
        asymmetries = self.asymmetry.shape[0]
        u = self.features.repeat_interleave(asymmetries, 1)[:, : self.out_channels] - y
        asymmetry, width = self.channels(self.asymmetry), self.channels(self.width)
        c = torch.where(u > 0, asymmetry, 1 - asymmetry)
        if self.weights is not None:
            of_features = heads_of(self.weights, self.features.shape[1])
            of_channels = of_features.repeat_interleave(asymmetries)[: self.out_channels]
            c = c * self.weights.index_select(1, of_channels)
        return u, c, width

    def channels(self, values: Tensor) -> Tensor:
        """`[..., A, F] -> [..., K]`."""
        return values.mT.flatten(-2)[..., : self.out_channels]

    def restrict(self, elements: Tensor) -> Penalties:
        weights = None if self.weights is None else self.weights.index_select(0, elements)
        return self._replace(features=self.features.index_select(0, elements), weights=weights)


class SummedLocation(SummedPotential):
    """Penalties summed over sets."""

    def __init__(self, penalties: Penalties, sets: Sets) -> None:
        self.penalties = penalties
        self.sets = sets

    def value(self, y: Tensor) -> Tensor:
        return self.sets.sum(self.penalties.of_elements(self.sets.spread(y)))

    def gradient(self, y: Tensor) -> Tensor:
        point, rest = separate(y)
        return self.sets.sum(self.penalties.slopes(self.sets.spread(point))) + rest

    def hessian(self, y: Tensor) -> LinearMap:
        with torch.no_grad():
            diagonal = self.sets.sum(self.penalties.curvatures(self.sets.spread(y)))
        return lambda direction: diagonal * direction

    def restrict(self, rows: Tensor) -> SummedPotential:
        elements, sets = self.sets.restrict(rows)
        return SummedLocation(self.penalties.restrict(elements), sets)

    def minimum(self, pull: Tensor | None, max_passes: int) -> Minimum:
        features, asymmetry, width, weights, _ = self.penalties
        if self.sets.weight is not None:
            own = self.sets.weight.unsqueeze(-1)
            weights = own if weights is None else own * weights
        ridge = None
        if pull is not None:  # beside penalties divided by 2 delta
            pull = pull.expand(-1, self.penalties.out_channels)
            missing = width.numel() - pull.shape[1]
            ridge = nn.functional.pad(pull, (0, missing)).unflatten(1, width.T.shape).mT / (
                2 * width
            )
        found = locate(
            features, self.sets.index, self.sets.counts, asymmetry, width, weights, ridge,
            max_passes,
        )  # fmt: skip
        error = self.penalties.channels(found.error)
        return Minimum(self.penalties.channels(found.y), error.amax(-1), found.passes)
