"""A potential that is convex in y: with the regulariser, the energy has one minimum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, softplus

from equipool.checks import as_sizes, check_sizes
from equipool.objective import Bounds, LinearMap
from equipool.ops import convex_gradient as ops
from equipool.potentials.base import Potential, SummedPotential, draw_weights, wide
from equipool.sets import Sets


class Reading(NamedTuple):
    """The contributions of x, which do not depend on y."""

    shifts: tuple[Tensor, ...]  # [N, h_l] for each layer
    gates: tuple[Tensor, ...]  # [N, h_l] for each layer, between 0 and 1
    slope: Tensor  # [N, K]


class ConvexPotential(Potential):
    r"""A network that is convex in $y$ for every $x$, and of any shape in $x$ (partially
    input-convex, [Amos et al. 2017](https://arxiv.org/abs/1609.07152)):

    $$F(x, y) = v^\top (g_L * z_L) + y^\top (D u_L + d), \qquad
      z_l = \mathrm{softplus}(M_l (g_{l-1} * z_{l-1}) + B_l y + C_l u_{l-1} + c_l),$$

    $$u_0 = x, \qquad u_l = \tanh(A_l u_{l-1} + a_l), \qquad
      g_l = \mathrm{sigmoid}(G_l u_l + e_l),$$

    without $M_1$. The mixes $M_l$ and $v$ are positive, $\mathrm{softplus}$ of what is learned
    divided by the number of inputs. $D$ and $d$ are zero at first. The term that is linear in y
    gives sums of learned features, as in Deep Sets: where all else is zero, the energy
    $\lVert y \rVert^2 / 2 + \sum_i F$ is least at $y = -\sum_i (D u_L(x_i) + d)$.

    With a regulariser $w \lVert y \rVert^2$ a set's energy is strongly convex. It has one minimum
    $y^*$, gradient descent with the step 1 / (upper bound of the curvature) converges to it from
    anywhere, and at any $y$ with gradient $g$ the distance is known:
    $\lVert y - y^* \rVert \le \lVert g \rVert / m$, $m$ being the lower bound of the curvature,
    $2 w$ times the scaling's weight.

    y is never multiplied by a function of x, so its matrix products are computed once per set. The
    contributions of x are computed once per solve.

    Args:
        in_channels: size of an element.
        out_channels: size of a set's output.
        hidden: sizes of the layers, both of the $z_l$ and of the $u_l$.

    Shapes:
        `x [N, in_channels]`, `y [N, out_channels]` -> `[N]`.

    Example:
        >>> layer = equipool.EquilibriumAggregation(3, 2, potential=ConvexPotential(3, 2))
        >>> layer.steps = 100
        >>> layer.solve(torch.randn(5, 3)).converged
        tensor([True])
    """

    def __init__(
        self, in_channels: int, out_channels: int, hidden: Sequence[int] = (64, 64)
    ) -> None:
        super().__init__()
        hidden = as_sizes("hidden", hidden)
        check_sizes(in_channels=in_channels, out_channels=out_channels)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.hidden = hidden
        widths = list(pairwise((in_channels, *hidden)))
        self.features = nn.ModuleList(nn.Linear(a, b) for a, b in widths)
        self.shifts = nn.ModuleList(nn.Linear(a, b) for a, b in widths)
        self.gates = nn.ModuleList(nn.Linear(size, size) for size in hidden)
        self.slope = nn.Linear(hidden[-1], out_channels)
        self.from_y = nn.Parameter(torch.empty(sum(hidden), out_channels))
        outputs = (*hidden[1:], 1)
        self.raw_mixes = nn.ParameterList(
            torch.empty(b, a) for a, b in zip(hidden, outputs, strict=True)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the matrices from normal distributions of deviation `1 / sqrt(fan_in)`, truncated at
        two deviations. The mixes start near the mean of their inputs; all biases, and the term that
        is linear in y, start at zero."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                draw_weights(module.weight, module.in_features**-0.5)
                nn.init.zeros_(module.bias)
        nn.init.zeros_(self.slope.weight)
        draw_weights(self.from_y, self.out_channels**-0.5)
        for raw in self.raw_mixes:
            draw_weights(raw, 0.5)
            with torch.no_grad():
                raw.add_(math.log(math.e - 1))  # softplus of it is 1

    def mixes(self) -> list[Tensor]:
        """$M_2, ..., M_L$ and $v$: positive, `[h_l, h_{l-1}]` each, and `[1, h_L]`."""
        return [softplus(raw) / raw.shape[1] for raw in self.raw_mixes]

    def read(self, x: Tensor) -> Reading:
        """The contributions of x."""
        u, shifts, gates = x, [], []
        for feature, shift, gate in zip(self.features, self.shifts, self.gates, strict=True):
            shifts.append(shift(u))
            u = torch.tanh(feature(u))
            gates.append(torch.sigmoid(gate(u)))
        return Reading(tuple(shifts), tuple(gates), self.slope(u))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        reading = self.read(x)
        z: Tensor | None = None
        own = linear(y, self.from_y).split(self.hidden, -1)
        *mixes, output = self.mixes()
        for i, (b, shift) in enumerate(zip(own, reading.shifts, strict=True)):
            a = b + shift
            if z is not None:
                a = a + linear(reading.gates[i - 1] * z, mixes[i - 1])
            z = softplus(a, threshold=ops.THRESHOLD)
        assert z is not None
        value = (wide(reading.gates[-1]) * wide(output[0]) * wide(z)).sum(-1)
        return value + (wide(reading.slope) * wide(y)).sum(-1)

    def bind(self, x: Tensor, sets: Sets) -> SummedPotential:
        if type(self).forward is not ConvexPotential.forward:
            return super().bind(x, sets)
        reading = self.read(x)
        device = x.device.type
        autocast = torch.is_autocast_enabled(device) and x.dtype != torch.float64
        product_dtype = torch.get_autocast_dtype(device) if autocast else x.dtype
        with torch.autocast(device, enabled=False):
            *mixes, output = (wide(mix) for mix in self.mixes())
            *gates, last = (wide(gate) for gate in reading.gates)
            network = ops.ConvexNetwork(
                self.hidden,
                torch.cat([*gates, last * output[0]], -1),
                tuple(mix.to(product_dtype) for mix in mixes),
            )
            shifts = torch.cat([wide(shift) for shift in reading.shifts], -1)
            slope = sets.sum(wide(reading.slope))
            return ConvexSum(network, shifts, wide(self.from_y), slope, sets)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, hidden={self.hidden}"


class ConvexSum(SummedPotential):
    """A convex potential summed over sets.

    Args:
        network: the gates, float32 at least, and the mixes, in the precision of their products.
        shifts: contributions of x to the pre-activations, `[N, H]`.
        from_y: the matrix whose product with y is added to them, `[H, K]`.
        slope: the slope of the term linear in y, summed over the sets, `[num_rows, K]`.
        sets: the sets.
    """

    def __init__(
        self, network: ops.ConvexNetwork, shifts: Tensor, from_y: Tensor, slope: Tensor, sets: Sets
    ) -> None:
        self.network = network
        self.shifts = shifts
        self.from_y = from_y
        self.slope = slope
        self.sets = sets

    def value(self, y: Tensor) -> Tensor:
        with torch.autocast(y.device.type, enabled=False):
            values = self.sets.sum(ops.element_values(self.network, self._contributions(y)))
            return values + (self.slope * y).sum(-1)

    def gradient(self, y: Tensor) -> Tensor:
        with torch.autocast(y.device.type, enabled=False):
            by_elements = ops.element_gradients(self.network, self._contributions(y))
            return torch.addmm(self.slope, self.sets.sum(by_elements), self.from_y)

    def hessian(self, y: Tensor) -> LinearMap:
        product = super().hessian(y)

        def unrounded(direction: Tensor) -> Tensor:
            with torch.autocast(direction.device.type, enabled=False):
                return product(direction)

        return unrounded

    def restrict(self, rows: Tensor) -> ConvexSum:
        elements, sets = self.sets.restrict(rows)
        network = self.network._replace(gates=self.network.gates.index_select(0, elements))
        shifts = self.shifts.index_select(0, elements)
        return ConvexSum(network, shifts, self.from_y, self.slope.index_select(0, rows), sets)

    def bounds(self) -> Bounds:
        """Zero, and an upper bound. Relative to the largest curvature that a search over y found,
        it is 1.2 times that for one layer, twice for two layers at initialisation, and 2 to 6 times
        for other weights or for three and four layers."""
        with torch.no_grad(), torch.autocast(self.shifts.device.type, enabled=False):
            network = self.network._replace(mixes=tuple(wide(mix) for mix in self.network.mixes))
            weights = self.sets.sum(ops.curvature_weights(network, self.from_y))
            upper = ops.largest_eigenvalues(weights, self.from_y)
        # A margin for rounding.
        upper = upper * (1 + 64 * torch.finfo(upper.dtype).eps)
        return Bounds(torch.zeros_like(upper), upper)

    def _contributions(self, y: Tensor) -> Tensor:
        return self.shifts + self.sets.spread(y @ self.from_y.T)
