"""The gradient and its vector-Jacobian product for some elements, in torch operations.

Notation, for one element: `u` are the pre-activations of all layers side by side, `h = tanh(t)`,
`t = gamma * xhat + beta`, `xhat = (u - mean u) * rstd`. A name with `_dot` is the derivative along
a direction of y; `delta` is the derivative of the potential by `u`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Network(NamedTuple):
    """What is not learned from data, and the parameters that the hidden layers read."""

    sizes: tuple[int, ...]
    scale: float  # the potential is scale / 2 times the sum of the last layer's squares
    eps: float
    product_dtype: torch.dtype  # the precision of the matrix products' operands
    from_hidden: tuple[Tensor, ...]
    gammas: tuple[Tensor, ...]
    betas: tuple[Tensor, ...]


class Adjoints(NamedTuple):
    """What the vector-Jacobian product gives: for each element, and summed over the elements."""

    delta: Tensor  # [n, H] by the direction's pre-activations
    by_u: Tensor  # [n, H] by the pre-activations
    from_hidden: tuple[Tensor, ...]
    gammas: tuple[Tensor, ...]
    betas: tuple[Tensor, ...]


class Normalized(NamedTuple):
    """A hidden layer's normalisation at some elements."""

    u: Tensor
    mean: Tensor
    rstd: Tensor
    h: Tensor


def element_gradient(network: Network, u: Tensor) -> Tensor:
    """The potential's derivative by the pre-activations, `delta [n, H]`.

    `u [n, H]` holds the contributions of x and y alone, and is used up.
    """
    layers, last = _activate(network, u), len(network.sizes) - 1
    delta = torch.empty_like(u)
    _columns(network, delta, last).copy_(_columns(network, u, last)).mul_(network.scale)
    for j in reversed(range(len(layers))):
        after = _after(network, delta, j)
        slope = _product(network, after, network.from_hidden[j]).mul_(_tanh_slope(layers[j].h))
        _columns(network, delta, j).copy_(_norm_adjoint(layers[j], slope, network.gammas[j]))
    return delta


def element_adjoints(network: Network, u: Tensor, u_dot: Tensor) -> Adjoints:
    """The derivatives of `sum of delta * direction`, by everything that `delta` is made of.

    `u [n, H]` and `u_dot [n, H]` hold the contributions of x and y, and of the direction, alone.
    Both are used up.
    """
    layers, last = _activate(network, u), len(network.sizes) - 1
    tangents = _push(network, layers, u_dot)
    delta, by_u = torch.empty_like(u), torch.empty_like(u)
    _columns(network, delta, last).copy_(_columns(network, u, last)).mul_(network.scale)
    _columns(network, by_u, last).copy_(_columns(network, u_dot, last)).mul_(network.scale)
    by_hidden: list[Tensor] = []
    by_gamma: list[Tensor] = []
    by_beta: list[Tensor] = []
    for j in reversed(range(len(layers))):
        layer, gamma, weight = layers[j], network.gammas[j], network.from_hidden[j]
        xhat_dot, h_dot = tangents[j]
        delta_after, by_u_after = _after(network, delta, j), _after(network, by_u, j)
        by_hidden.append(
            _product(network, by_u_after.T, layer.h) + _product(network, delta_after.T, h_dot)
        )
        slope = _tanh_slope(layer.h)
        by_h_dot = _product(network, delta_after, weight)
        # h_dot = (1 - h^2) t_dot, so h is read by it as well.
        by_h = _product(network, by_u_after, weight)
        by_t = (by_h - 2 * layer.h * (gamma * xhat_dot) * by_h_dot) * slope
        by_t_dot = by_h_dot * slope
        xhat = (layer.u - layer.mean) * layer.rstd
        by_gamma.append((by_t * xhat + by_t_dot * xhat_dot).sum(0))
        by_beta.append(by_t.sum(0))
        by_xhat_dot = gamma * by_t_dot
        _columns(network, delta, j).copy_(_norm_adjoint(layer, by_t_dot, gamma))
        # xhat_dot = rstd (u_dot - mean u_dot - xhat mean(xhat u_dot)) reads xhat and rstd too.
        direction = _columns(network, u_dot, j)
        along = (xhat * direction).mean(-1, keepdim=True)
        across = (by_xhat_dot * xhat).mean(-1, keepdim=True)
        by_xhat = gamma * by_t - layer.rstd * (by_xhat_dot * along + across * direction)
        by_rstd = layer.rstd * (by_xhat_dot * xhat_dot).mean(-1, keepdim=True)
        adjoint = _norm_adjoint(layer, by_xhat, None) - xhat * by_rstd
        _columns(network, by_u, j).copy_(adjoint)
    return Adjoints(
        delta, by_u, tuple(by_hidden[::-1]), tuple(by_gamma[::-1]), tuple(by_beta[::-1])
    )


def _activate(network: Network, u: Tensor) -> list[Normalized]:
    """Run the hidden layers, adding to `u` what they give to the layers after them."""
    layers = []
    for j, (gamma, beta) in enumerate(zip(network.gammas, network.betas, strict=True)):
        own = _columns(network, u, j).contiguous()
        t, mean, rstd = torch.native_layer_norm(own, [own.shape[1]], gamma, beta, network.eps)
        h = t.tanh_()
        layers.append(Normalized(own, mean, rstd, h))
        _after(network, u, j).add_(_product(network, h, network.from_hidden[j].T))
    return layers


def _push(
    network: Network, layers: Sequence[Normalized], u_dot: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Carry the direction through the hidden layers: `xhat_dot` and `h_dot` of each."""
    tangents = []
    for j, (layer, gamma) in enumerate(zip(layers, network.gammas, strict=True)):
        xhat_dot = _norm_adjoint(layer, _columns(network, u_dot, j).contiguous(), None)
        h_dot = gamma * xhat_dot * _tanh_slope(layer.h)
        tangents.append((xhat_dot, h_dot))
        _after(network, u_dot, j).add_(_product(network, h_dot, network.from_hidden[j].T))
    return tangents


def _norm_adjoint(layer: Normalized, by_t: Tensor, gamma: Tensor | None) -> Tensor:
    """The normalisation's adjoint; without gamma also its derivative, the two being one map."""
    return torch.ops.aten.native_layer_norm_backward(
        by_t, layer.u, [layer.u.shape[1]], layer.mean, layer.rstd, gamma, None,
        [True, False, False],
    )[0]  # fmt: skip


def _tanh_slope(h: Tensor) -> Tensor:
    return 1 - h * h


def _columns(network: Network, u: Tensor, j: int) -> Tensor:
    start = sum(network.sizes[:j])
    return u[:, start : start + network.sizes[j]]


def _after(network: Network, u: Tensor, j: int) -> Tensor:
    return u[:, sum(network.sizes[: j + 1]) :]


def _product(network: Network, a: Tensor, b: Tensor) -> Tensor:
    return (a.to(network.product_dtype) @ b.to(network.product_dtype)).to(
        torch.promote_types(a.dtype, b.dtype)
    )
