"""The paper's potential: a small residual network with squared outputs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from equipool.checks import as_sizes, check_sizes
from equipool.objective import LinearMap
from equipool.ops.resnet_gradient import Maps, Spec, make_gradient
from equipool.potentials.base import (
    AutogradSum,
    Potential,
    SummedPotential,
    draw_weights,
    wide,
)
from equipool.private_torch import GLOBAL_HOOKS
from equipool.sets import Sets

MIN_WIDTH = 16  # of the normalised layers, by default

Kept = Sequence[Tensor | None]  # of each layer's input: a factor for each unit, or None for all


class ResNetPotential(Potential):
    r"""The potential of the paper's listing, $F(x, y) = \mathrm{mean}(z_L^2)$ with

    $$z_0 = [x; y], \qquad z_l = S_l z_{l-1} + \tanh(\mathrm{LN}(W_l z_{l-1} + b_l)),$$

    where the last layer has neither normalisation nor tanh, and $S_l$ is the identity where the
    sizes match and a learned affine map elsewhere.

    With zero biases, as in the paper's library, an element of zeros at a start of zero gives
    pre-activations of zero, where the normalisation is singular: gradients of sets with such
    elements, such as ReLU features, reach 1e9 and more. The biases are therefore drawn at random by
    default. With `bias_std=0` use another start, `LearnedStart(value=1)`, for such data.

    Args:
        in_channels: size of an element.
        out_channels: size of a set's output.
        hidden: sizes of the layers, the last one included. Default: the listing's
            `(2 * out_channels, out_channels, 32)`, with at least 16 units in the first two. All but
            the last are normalised, which needs more than a few units.
        reduction: `"mean"` of the squares, as in the paper's listing, or `"sum"`, as in its text.
        factored: whether the gradient with respect to y is the hand-written operation, which is
            faster and keeps no activations, or by automatic differentiation, which allows higher
            derivatives and serves wherever elements have weights.
        dropout: dropout rate of the hidden units in training: the next layer does not read dropped
            units, while an identity skip keeps them. They are drawn when the layer is called and
            are the same for all sets and all steps of the search, so that there is an energy to
            descend. Every call draws new ones, including the layer's `energy`; `forward` of the
            potential drops nothing.
        bias_std: standard deviation of the normal distribution that the initial biases are drawn
            from. 0 gives the paper's zeros.

    Shapes:
        `x [N, in_channels]`, `y [N, out_channels]` -> `[N]`, never negative.

    Example:
        >>> potential = ResNetPotential(4, 8, hidden=(16, 8, 3))
        >>> potential(torch.randn(5, 4), torch.zeros(5, 8)).shape
        torch.Size([5])
    """

    def __init__(
        self, in_channels: int, out_channels: int, hidden: Sequence[int] | None = None,
        reduction: Literal["mean", "sum"] = "mean", factored: bool = True, dropout: float = 0.0,
        bias_std: float = 0.3,
    ) -> None:  # fmt: skip
        super().__init__()
        check_sizes(in_channels=in_channels, out_channels=out_channels)
        hidden = default_hidden(out_channels) if hidden is None else as_sizes("hidden", hidden)
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction is {reduction!r}, expected 'mean' or 'sum'")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout is {dropout!r}, expected at least 0 and less than 1")
        if not (math.isfinite(bias_std) and bias_std >= 0):
            raise ValueError(f"bias_std is {bias_std!r}, expected a finite number of 0 or more")
        if any(size <= 2 for size in hidden[:-1]):
            warnings.warn(
                f"hidden is {hidden}: normalising a layer of one unit makes it constant, and of "
                f"two nearly a sign; use larger sizes, {MIN_WIDTH} or more for all but the last",
                UserWarning,
                stacklevel=2,
            )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.hidden = hidden
        self.reduction = reduction
        self.factored = factored
        self.dropout = dropout
        self.bias_std = bias_std
        sizes = (in_channels + out_channels, *hidden)
        pairs = list(pairwise(sizes))
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in pairs)
        self.norms = nn.ModuleList(nn.LayerNorm(b) for b in hidden[:-1])
        self.skips = nn.ModuleList(nn.Identity() if a == b else nn.Linear(a, b) for a, b in pairs)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights as the paper's library does by default, from a normal distribution of
        deviation `1 / sqrt(fan_in)`, cut at two deviations, and the biases from one of deviation
        `bias_std`."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                draw_weights(module.weight, module.in_features**-0.5)
                if module.bias is not None and self.bias_std > 0:
                    nn.init.normal_(module.bias, std=self.bias_std)
                elif module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.LayerNorm):
                module.reset_parameters()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.energy(x, y, whole(self))

    def energy(self, x: Tensor, y: Tensor, kept: Kept) -> Tensor:
        """The potential where each layer's learned maps read what is kept of their input."""
        z = torch.cat([x, y], dim=-1)
        last = len(self.hidden) - 1
        for i, (linear, skip) in enumerate(zip(self.linears, self.skips, strict=True)):
            factor = kept[i]
            read = z if factor is None else z * factor.to(z.dtype)
            h = linear(read)
            if i < last:
                h = torch.tanh(_normalise(h, self.norms[i]))
            z = skip(z if isinstance(skip, nn.Identity) else read) + h
        squares = wide(z).square()
        return squares.mean(-1) if self.reduction == "mean" else squares.sum(-1)

    def bind(self, x: Tensor, sets: Sets) -> SummedPotential:
        potential: ResNetPotential | Thinned = self
        if self.training and self.dropout > 0:
            kind = type(self)
            ours = kind.forward is ResNetPotential.forward and kind.energy is ResNetPotential.energy
            if not ours or _is_changed(self):
                raise ValueError(
                    f"dropout is {self.dropout}, expected 0 with a forward of your own or hooks on "
                    "the potential"
                )
            potential = Thinned(self, x)
        factored = self.factored and sets.weight is None and _is_factorable(self)
        return (FactoredSum if factored else AutogradSum)(potential, x, sets)

    def extra_repr(self) -> str:
        dropout = f", dropout={self.dropout}" if self.dropout else ""
        return (
            f"{self.in_channels}, {self.out_channels}, hidden={self.hidden}, "
            f"reduction={self.reduction!r}{dropout}"
        )


def default_hidden(out_channels: int) -> tuple[int, int, int]:
    """The paper's sizes, with a floor: normalising one unit gives a constant, and normalising two
    gives nearly a sign."""
    return max(2 * out_channels, MIN_WIDTH), max(out_channels, MIN_WIDTH), 32


def whole(potential: ResNetPotential) -> Kept:
    """All of every layer's input."""
    return [None] * len(potential.hidden)


class Thinned:
    """A potential some of whose hidden units are dropped, the same ones whenever it is called."""

    def __init__(self, potential: ResNetPotential, like: Tensor) -> None:
        self.potential = potential
        units = (torch.ones(size, device=like.device) for size in potential.hidden[:-1])
        self.kept: Kept = [None, *(functional.dropout(some, potential.dropout) for some in units)]

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        return self.potential.energy(x, y, self.kept)


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _is_factorable(potential: ResNetPotential) -> bool:
    """Whether all parts are exactly torch's own classes in the sizes of `hidden`, with biases and
    without hooks, so that the hand-written gradient is that of this potential."""
    pairs = list(pairwise((potential.in_channels + potential.out_channels, *potential.hidden)))
    skips = [
        None if a == b and type(skip) is nn.Identity else (b, a)
        for skip, (a, b) in zip(potential.skips, pairs, strict=False)
    ]
    return (
        type(potential) is ResNetPotential
        and not any(GLOBAL_HOOKS)
        and not any(map(_is_changed, potential.modules()))
        and list(map(_shape, potential.linears)) == [(b, a) for a, b in pairs]
        and list(map(_shape, potential.norms)) == [(b,) for _, b in pairs[:-1]]
        and list(map(_shape, potential.skips)) == skips
        and len({norm.eps for norm in potential.norms}) <= 1
        and all(
            part.weight is not None and part.bias is not None
            for part in potential.modules()
            if isinstance(part, nn.Linear | nn.LayerNorm)
        )
    )


def _shape(part: nn.Module) -> tuple[int, ...] | None:
    """The sizes of a linear layer or of a normalisation."""
    if type(part) is nn.LayerNorm:
        return part.normalized_shape
    return tuple(part.weight.shape) if type(part) is nn.Linear else None


def _is_changed(module: nn.Module) -> bool:
    """Whether a module has hooks or a function of its own in place of its class's."""
    own = vars(module)
    return any(own[hooks] for hooks in HOOKS) or "forward" in own or "energy" in own


class FactoredSum(AutogradSum):
    """The paper's potential summed over sets, its gradient by the hand-written operation."""

    def __init__(self, given: ResNetPotential | Thinned, x: Tensor, sets: Sets) -> None:
        super().__init__(given, x, sets)
        potential = given.potential if isinstance(given, Thinned) else given
        kept = given.kept if isinstance(given, Thinned) else whole(potential)
        norms = cast(list[nn.LayerNorm], list(potential.norms))
        scales = [(wide(norm.weight), wide(norm.bias)) for norm in norms]
        device = x.device.type
        # As torch's own operations do, leave float64 alone.
        autocast = torch.is_autocast_enabled(device) and x.dtype != torch.float64
        spec = Spec(
            sizes=potential.hidden,
            scale=2.0 / (potential.hidden[-1] if potential.reduction == "mean" else 1),
            eps=norms[0].eps if norms else 0.0,
            product_dtype=torch.get_autocast_dtype(device) if autocast else x.dtype,
        )
        with torch.autocast(device, enabled=False):
            maps = _maps(potential, kept)
            self.factored = make_gradient(spec, maps, scales, x, sets.index, sets.num_rows)

    def value(self, y: Tensor) -> Tensor:
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return super().value(y)
        with torch.autocast(y.device.type, enabled=False):
            return self.factored.value(y)

    def gradient(self, y: Tensor) -> Tensor:
        with torch.autocast(y.device.type, enabled=False):
            return self.factored.gradient(y)

    def hessian(self, y: Tensor) -> LinearMap:
        @torch.no_grad()
        def product(direction: Tensor) -> Tensor:
            with torch.autocast(y.device.type, enabled=False):
                return self.factored.hessian_product(direction, y)

        return product


def _normalise(h: Tensor, norm: nn.Module) -> Tensor:
    """LayerNorm written out: the third derivative of torch's own is wrong (pytorch#175754), and a
    second gradient through the layer needs it. Any other module is called."""
    plain = _shape(norm) == h.shape[-1:] and not _is_changed(norm)
    if not plain or not isinstance(norm, nn.LayerNorm):
        return cast(Tensor, norm(h))
    gamma, beta = norm.weight, norm.bias
    centered = wide(h) - wide(h).mean(-1, keepdim=True)
    scaled = centered * torch.rsqrt(centered.square().mean(-1, keepdim=True) + norm.eps)
    scaled = scaled if gamma is None else scaled * gamma
    return (scaled if beta is None else scaled + beta).to(h.dtype)


def _maps(potential: ResNetPotential, kept: Kept) -> Maps:
    """The potential's layers and skips, in float32 at least, of what is kept of their inputs."""

    def affine(part: nn.Module, factor: Tensor | None) -> tuple[Tensor, Tensor] | None:
        if not isinstance(part, nn.Linear):
            return None
        weight = wide(part.weight)
        return weight if factor is None else weight * factor, wide(part.bias)

    layers = cast(list[tuple[Tensor, Tensor]], list(map(affine, potential.linears, kept)))
    return Maps(layers, list(map(affine, potential.skips, kept)))
