"""The paper's potential: a small residual network with squared outputs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from equipool.objective import LinearMap
from equipool.ops.resnet_gradient import Maps, Spec, bind_gradient
from equipool.potentials.base import AutogradSum, Potential, SummedPotential
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
        factored: whether the gradient by y is taken by the hand-written operation, which is faster
            and keeps no activations, or by automatic differentiation, which can be differentiated
            more than once more.
        dropout: share of the hidden units that the next layer does not read, in training; an
            identity skip keeps them. They are drawn when the layer is called and are the same for
            all sets and all steps of the search, so that there is an energy to descend. Another
            call, the layer's `energy` too, draws others; `forward` alone drops nothing.
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
        self,
        in_channels: int,
        out_channels: int,
        hidden: Sequence[int] | None = None,
        reduction: Literal["mean", "sum"] = "mean",
        factored: bool = True,
        dropout: float = 0.0,
        bias_std: float = 0.3,
    ) -> None:
        super().__init__()
        hidden = tuple(hidden) if hidden is not None else default_hidden(out_channels)
        if not hidden or min(hidden) < 1:
            raise ValueError(f"hidden is {hidden}, expected at least one size, each 1 or more")
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction is {reduction!r}, expected 'mean' or 'sum'")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout is {dropout!r}, expected at least 0 and less than 1")
        if not (math.isfinite(bias_std) and bias_std >= 0):
            raise ValueError(f"bias_std is {bias_std!r}, expected a finite number of 0 or more")
        _warn_of_small_norms(hidden)
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
                std = module.in_features**-0.5
                nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
                if self.bias_std > 0:
                    nn.init.normal_(module.bias, std=self.bias_std)
                else:
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
                h = torch.tanh(_layer_norm(h, self.norms[i]))
            z = skip(z if isinstance(skip, nn.Identity) else read) + h
        squares = _wide(z).square()
        return squares.mean(-1) if self.reduction == "mean" else squares.sum(-1)

    def over(self, x: Tensor, sets: Sets) -> SummedPotential:
        potential: ResNetPotential | Thinned = self
        if self.training and self.dropout > 0:
            if type(self).forward is not ResNetPotential.forward:
                raise ValueError(
                    f"dropout is {self.dropout}, expected 0 with a forward of your own"
                )
            potential = Thinned(self, x)
        factored = self.factored and _is_as_built(self)
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


def _warn_of_small_norms(hidden: Sequence[int]) -> None:
    if any(size <= 2 for size in hidden[:-1]):
        warnings.warn(
            f"hidden is {tuple(hidden)}: normalising a layer of one unit makes it constant, and of "
            f"two units nearly a sign; use larger sizes, {MIN_WIDTH} or more for all but the last",
            UserWarning,
            stacklevel=3,
        )


def whole(potential: ResNetPotential) -> Kept:
    """All of every layer's input."""
    return [None] * len(potential.hidden)


class Thinned:
    """A potential some of whose hidden units are dropped, the same ones whenever it is called.

    Args:
        potential: the whole one.
        like: on whose device the factors are.
    """

    def __init__(self, potential: ResNetPotential, like: Tensor) -> None:
        self.potential = potential
        units = (torch.ones(size, device=like.device) for size in potential.hidden[:-1])
        self.kept: Kept = [None, *(functional.dropout(some, potential.dropout) for some in units)]

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        return self.potential.energy(x, y, self.kept)


def _is_as_built(potential: ResNetPotential) -> bool:
    """Whether the hand-written gradient is that of this potential: neither its forward nor one of
    its layers has been replaced by something that computes another function."""

    def computes(module: nn.Module, *kinds: type[nn.Module]) -> bool:
        kind = next((kind for kind in kinds if isinstance(module, kind)), None)
        hooked = bool(module._forward_hooks or module._forward_pre_hooks)
        return kind is not None and type(module).forward is kind.forward and not hooked

    return (
        type(potential).forward is ResNetPotential.forward
        and all(computes(module, nn.Linear) for module in potential.linears)
        and all(computes(module, nn.LayerNorm) for module in potential.norms)
        and all(computes(module, nn.Linear, nn.Identity) for module in potential.skips)
    )


class FactoredSum(AutogradSum):
    """The paper's potential summed over sets, its gradient by the hand-written operation."""

    def __init__(self, given: ResNetPotential | Thinned, x: Tensor, sets: Sets) -> None:
        super().__init__(given, x, sets)
        potential = given.potential if isinstance(given, Thinned) else given
        kept = given.kept if isinstance(given, Thinned) else whole(potential)
        norms = [norm for norm in potential.norms if isinstance(norm, nn.LayerNorm)]
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
            self._bound = bind_gradient(
                spec,
                _maps(potential, kept),
                x,
                sets.index,
                sets.num_rows,
                [_wide(norm.weight) for norm in norms],
                [_wide(norm.bias) for norm in norms],
            )

    def value(self, y: Tensor) -> Tensor:
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return super().value(y)
        with torch.autocast(y.device.type, enabled=False):
            return self._bound.value(y)

    def gradient(self, y: Tensor) -> Tensor:
        with torch.autocast(y.device.type, enabled=False):
            return self._bound.gradient(y)

    def hessian(self, y: Tensor) -> LinearMap:
        @torch.no_grad()
        def product(direction: Tensor) -> Tensor:
            with torch.autocast(y.device.type, enabled=False):
                return self._bound.hessian_product(direction, y)

        return product


def _layer_norm(h: Tensor, norm: nn.Module) -> Tensor:
    """The normalisation written out: the third derivative of torch's own is wrong (pytorch#175754),
    and a second gradient through the layer needs it."""
    assert isinstance(norm, nn.LayerNorm)
    centered = _wide(h) - _wide(h).mean(-1, keepdim=True)
    scaled = centered * torch.rsqrt(centered.square().mean(-1, keepdim=True) + norm.eps)
    return (scaled * norm.weight + norm.bias).to(h.dtype)


def _maps(potential: ResNetPotential, kept: Kept) -> Maps:
    """The potential's layers and skips, in float32 at least, of what is kept of their inputs."""
    layers = [
        _affine(linear, factor)
        for linear, factor in zip(potential.linears, kept, strict=True)
        if isinstance(linear, nn.Linear)
    ]
    skips = [
        _affine(skip, factor) if isinstance(skip, nn.Linear) else None
        for skip, factor in zip(potential.skips, kept, strict=True)
    ]
    return Maps(layers, skips)


def _affine(linear: nn.Linear, kept: Tensor | None) -> tuple[Tensor, Tensor]:
    weight = _wide(linear.weight)
    return weight if kept is None else weight * kept, _wide(linear.bias)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
