"""The paper's potential: a small residual network with squared outputs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from equipool.objective import LinearMap
from equipool.ops.resnet_gradient import Maps, Spec, bind_gradient
from equipool.potentials.base import AutogradSum, Potential, SummedPotential
from equipool.sets import Sets


class ResNetPotential(Potential):
    r"""The potential of the paper's listing, $F(x, y) = \mathrm{mean}(z_L^2)$ with

    $$z_0 = [x; y], \qquad z_l = S_l z_{l-1} + \tanh(\mathrm{LN}(W_l z_{l-1} + b_l)),$$

    where the last layer has neither normalisation nor tanh, and $S_l$ is the identity where the
    sizes match and a learned affine map elsewhere.

    Where an element is exactly zero, so is the first $z$ at a start of zero, and the normalisation
    of zeros is nearly singular: a set of nothing but zeros has a derivative of 1e9 and more there.
    Such data want another start, `LearnedStart(value=1)`.

    Args:
        in_channels: size of an element.
        out_channels: size of a set's output.
        hidden: sizes of the layers, the last one included. Default: the listing's
            `(2 * out_channels, out_channels, 32)`.
        reduction: `"mean"` of the squares, as in the paper's listing, or `"sum"`, as in its text.
        factored: whether the gradient by y is taken by the hand-written operation, which is faster
            and keeps no activations, or by automatic differentiation, which can be differentiated
            more than once more.

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
    ) -> None:
        super().__init__()
        hidden = tuple(hidden) if hidden is not None else (2 * out_channels, out_channels, 32)
        if not hidden or min(hidden) < 1:
            raise ValueError(f"hidden is {hidden}, expected at least one size, each 1 or more")
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction is {reduction!r}, expected 'mean' or 'sum'")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.hidden = hidden
        self.reduction = reduction
        self.factored = factored
        sizes = (in_channels + out_channels, *hidden)
        pairs = list(pairwise(sizes))
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in pairs)
        self.norms = nn.ModuleList(nn.LayerNorm(b) for b in hidden[:-1])
        self.skips = nn.ModuleList(nn.Identity() if a == b else nn.Linear(a, b) for a, b in pairs)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights as the paper's library does by default: from a normal distribution of
        deviation `1 / sqrt(fan_in)`, cut at two deviations; biases are zero."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                std = module.in_features**-0.5
                nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.LayerNorm):
                module.reset_parameters()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = torch.cat([x, y], dim=-1)
        last = len(self.hidden) - 1
        for i, (linear, skip) in enumerate(zip(self.linears, self.skips, strict=True)):
            h = linear(z)
            if i < last:
                h = torch.tanh(_layer_norm(h, self.norms[i]))
            z = skip(z) + h
        squares = _wide(z).square()
        return squares.mean(-1) if self.reduction == "mean" else squares.sum(-1)

    def over(self, x: Tensor, sets: Sets) -> SummedPotential:
        factored = self.factored and _is_as_built(self)
        return FactoredSum(self, x, sets) if factored else super().over(x, sets)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, hidden={self.hidden}, "
            f"reduction={self.reduction!r}"
        )


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

    def __init__(self, potential: ResNetPotential, x: Tensor, sets: Sets) -> None:
        super().__init__(potential, x, sets)
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
                _maps(potential),
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


def _maps(potential: ResNetPotential) -> Maps:
    """The potential's layers and skips, in float32 at least."""
    layers = [_affine(linear) for linear in potential.linears if isinstance(linear, nn.Linear)]
    skips = [_affine(skip) if isinstance(skip, nn.Linear) else None for skip in potential.skips]
    return Maps(layers, skips)


def _affine(linear: nn.Linear) -> tuple[Tensor, Tensor]:
    return _wide(linear.weight), _wide(linear.bias)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
