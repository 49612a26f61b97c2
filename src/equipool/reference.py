"""The layer once more, as plainly as it can be written, to compare everything else with.

Dense, one set at a time, gradients by automatic differentiation of automatic differentiation, and
nothing shared with the rest of the package: slow, and easy to check against the paper's Listings 1
and 2 and its Eq. 5 and 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

NORM_EPSILON = 1e-5  # of Haiku's LayerNorm
SCALING_EPSILON = 1e-8  # of Eq. 8


def potential(x: Tensor, y: Tensor, layer: Any) -> Tensor:
    """Listing 1: `x [n, C]` and one output `y [K]` -> `[n]`."""
    z = torch.cat([x, y.expand(x.shape[0], -1)], dim=1)
    network = layer.potential
    for i, (linear, skip) in enumerate(zip(network.linears, network.skips, strict=True)):
        h = z @ linear.weight.T + linear.bias
        if i < len(network.norms):
            norm = network.norms[i]
            centered = h - h.mean(dim=1, keepdim=True)
            variance = (centered * centered).mean(dim=1, keepdim=True)
            h = torch.tanh(centered / torch.sqrt(variance + NORM_EPSILON) * norm.weight + norm.bias)
        if hasattr(skip, "weight"):  # otherwise the sizes match, and it is the identity
            z = z @ skip.weight.T + skip.bias
        z = z + h
    squares = z * z
    return squares.mean(dim=1) if network.reduction == "mean" else squares.sum(dim=1)


def energy(x: Tensor, y: Tensor, layer: Any) -> Tensor:
    """Energy of one set `x [n, C]` at `y [K]`: a number. That of an empty set is 0."""
    n = x.shape[0]
    if n == 0:
        return torch.zeros_like(y).sum()
    regularizer = layer.regularizer.weight * (y * y).sum()
    potentials = potential(x, y, layer)
    if layer.scaling == "mean":
        return regularizer + potentials.mean()
    if layer.scaling == "sum":
        return regularizer + potentials.sum()
    log = torch.log2(torch.tensor(n + 1.0, dtype=y.dtype))
    if layer.scaling == "log-mean":
        return regularizer + log * potentials.mean()
    return log / (n + SCALING_EPSILON) * (regularizer + potentials.sum())


def energy_gradient(x: Tensor, y: Tensor, layer: Any) -> Tensor:
    """The energy's derivative by `y [K]`, differentiable."""
    if x.shape[0] == 0:
        return torch.zeros_like(y)
    with torch.enable_grad():
        y = y if y.requires_grad else y.detach().requires_grad_()
        return torch.autograd.grad(energy(x, y, layer), y, create_graph=True)[0]


def aggregate_one(x: Tensor, layer: Any, num_steps: int) -> tuple[Tensor, Tensor]:
    """Listing 2 for one set: its output `[K]`, and Eq. 5 measured where the gradients are taken."""
    solver = layer.solver
    y = getattr(layer.start, "y", torch.zeros(layer.out_channels)).to(x)
    velocity = torch.zeros_like(y)
    squares = torch.zeros_like(y).sum()
    for _ in range(num_steps):
        g = energy_gradient(x, y + solver.momentum * velocity, layer)
        velocity = solver.momentum * velocity - solver.learning_rate * g
        y = y + (g.abs().max() >= solver.gtol) * velocity
        if solver.clip_value is not None:
            y = torch.clamp(y, -solver.clip_value, solver.clip_value)
        squares = squares + (g * g).sum()
    return y, squares / max(num_steps, 1)


def aggregate(
    sets: Sequence[Tensor], layer: Any, num_steps: int | None = None
) -> tuple[Tensor, Tensor]:
    """Outputs `[B, K]` of a list of sets `[n, C]` each, and the auxiliary loss: Eq. 5 averaged over
    the sets that have elements.

    Args:
        sets: the sets.
        layer: an `EquilibriumAggregation` with a `ResNetPotential`, a `SquaredNorm` and a
            `Nesterov`. Gradients flow to its parameters.
        num_steps: number of steps. Default: the layer's own.

    Example:
        >>> layer = equipool.EquilibriumAggregation(3, 8)
        >>> x = torch.randn(5, 3)
        >>> y, _ = aggregate([x[:2], x[2:]], layer)
        >>> bool(torch.allclose(y, layer(x, ptr=torch.tensor([0, 2, 5])), atol=1e-5))
        True
    """
    num_steps = layer.steps.max_steps if num_steps is None else num_steps
    solved = [aggregate_one(x, layer, num_steps) for x in sets]
    losses = [loss for x, (_, loss) in zip(sets, solved, strict=True) if x.shape[0] > 0]
    aux_loss = torch.stack(losses).mean() if losses else torch.zeros(())
    return torch.stack([y for y, _ in solved]), aux_loss
