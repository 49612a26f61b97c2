"""The layer once more, as plainly as it can be written, to compare everything else with.

Dense, one set at a time, gradients by automatic differentiation of automatic differentiation, and
nothing shared with the rest of the package: slow, and easy to check against the paper's Listings 1
and 2 and its Eq. 5 and 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

NORM_EPSILON = 1e-5  # of Haiku's LayerNorm
SCALING_EPSILON = 1e-8  # of Eq. 8


class Affine(NamedTuple):
    """`z -> weight z + bias`; after a normalisation the weight is diagonal."""

    weight: Tensor  # [out, in], or the diagonal [out]
    bias: Tensor  # [out]


class Block(NamedTuple):
    """One layer of the potential's network."""

    linear: Affine
    norm: Affine | None  # None: the last layer, without normalisation and tanh
    skip: Affine | None  # None: the sizes match, the skip is the identity


@dataclass(frozen=True)
class Reference:
    """Weights and settings of the layer. The scalars are those in effect: softplus and sigmoid have
    been applied."""

    blocks: tuple[Block, ...]
    start: Tensor  # [K]
    regularizer_weight: Tensor
    learning_rate: Tensor
    momentum: Tensor
    num_steps: int
    scaling: str = "log"
    reduction: str = "mean"
    gtol: float = 0.0
    clip_value: float | None = None


def read_layer(layer: Any, num_steps: int | None = None) -> Reference:
    """Read an `EquilibriumAggregation` with a `ResNetPotential`, a `SquaredNorm` and a `Nesterov`
    through its public attributes, if wanted with another number of steps. Gradients flow to the
    layer's own parameters.

    Example:
        >>> layer = equipool.EquilibriumAggregation(3, 8)
        >>> x = torch.randn(5, 3)
        >>> y, _ = aggregate([x[:2], x[2:]], read_layer(layer))
        >>> bool(torch.allclose(y, layer(x, ptr=torch.tensor([0, 2, 5])), atol=1e-5))
        True
    """
    network, solver = layer.potential, layer.solver
    norms, linears, skips = (
        [Affine(part.weight, part.bias) if hasattr(part, "weight") else None for part in parts]
        for parts in (network.norms, network.linears, network.skips)
    )
    zeros = network.linears[0].weight.new_zeros(layer.out_channels)
    return Reference(
        blocks=tuple(map(Block, linears, [*norms, None], skips)),  # type: ignore[arg-type]
        start=getattr(layer.start, "y", zeros),
        regularizer_weight=layer.regularizer.weight,
        learning_rate=solver.learning_rate,
        momentum=solver.momentum,
        num_steps=layer.steps.max_steps if num_steps is None else num_steps,
        scaling=layer.scaling,
        reduction=network.reduction,
        gtol=solver.gtol,
        clip_value=solver.clip_value,
    )


def potential(x: Tensor, y: Tensor, reference: Reference) -> Tensor:
    """Listing 1: `x [n, C]` and one output `y [K]` -> `[n]`."""
    z = torch.cat([x, y.expand(x.shape[0], -1)], dim=1)
    for linear, norm, skip in reference.blocks:
        h = z @ linear.weight.T + linear.bias
        if norm is not None:
            centered = h - h.mean(dim=1, keepdim=True)
            variance = (centered * centered).mean(dim=1, keepdim=True)
            h = torch.tanh(centered / torch.sqrt(variance + NORM_EPSILON) * norm.weight + norm.bias)
        if skip is not None:
            z = z @ skip.weight.T + skip.bias
        z = z + h
    squares = z * z
    return squares.mean(dim=1) if reference.reduction == "mean" else squares.sum(dim=1)


def energy(x: Tensor, y: Tensor, reference: Reference) -> Tensor:
    """Energy of one set `x [n, C]` at `y [K]`: a number. That of an empty set is 0."""
    n = x.shape[0]
    if n == 0:
        return torch.zeros_like(y).sum()
    regularizer = reference.regularizer_weight * (y * y).sum()
    potentials = potential(x, y, reference)
    if reference.scaling == "mean":
        return regularizer + potentials.mean()
    if reference.scaling == "sum":
        return regularizer + potentials.sum()
    log = torch.log2(torch.tensor(n + 1.0, dtype=y.dtype))
    if reference.scaling == "log-mean":
        return regularizer + log * potentials.mean()
    return log / (n + SCALING_EPSILON) * (regularizer + potentials.sum())


def energy_gradient(x: Tensor, y: Tensor, reference: Reference) -> Tensor:
    """The energy's derivative by `y [K]`, differentiable."""
    if x.shape[0] == 0:
        return torch.zeros_like(y)
    with torch.enable_grad():
        y = y if y.requires_grad else y.detach().requires_grad_()
        return torch.autograd.grad(energy(x, y, reference), y, create_graph=True)[0]


def aggregate_one(x: Tensor, reference: Reference) -> tuple[Tensor, Tensor]:
    """Listing 2 for one set: its output `[K]`, and Eq. 5 measured where the gradients are taken."""
    y = reference.start.to(x.dtype)
    velocity = torch.zeros_like(y)
    squares = torch.zeros_like(y).sum()
    for _ in range(reference.num_steps):
        g = energy_gradient(x, y + reference.momentum * velocity, reference)
        velocity = reference.momentum * velocity - reference.learning_rate * g
        y = y + (g.abs().max() >= reference.gtol) * velocity
        if reference.clip_value is not None:
            y = torch.clamp(y, -reference.clip_value, reference.clip_value)
        squares = squares + (g * g).sum()
    return y, squares / max(reference.num_steps, 1)


def aggregate(sets: Sequence[Tensor], reference: Reference) -> tuple[Tensor, Tensor]:
    """Outputs `[B, K]` of a list of sets `[n, C]` each, and the auxiliary loss: Eq. 5 averaged over
    the sets that have elements."""
    solved = [aggregate_one(x, reference) for x in sets]
    losses = [loss for x, (_, loss) in zip(sets, solved, strict=True) if x.shape[0] > 0]
    aux_loss = torch.stack(losses).mean() if losses else torch.zeros_like(reference.start).sum()
    return torch.stack([y for y, _ in solved]), aux_loss
