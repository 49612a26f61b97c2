"""The gradient and its vector-Jacobian product for some elements, in torch operations.

Notation, for one element: `u` are the pre-activations of all layers side by side, `h = tanh(t)`,
`t = gamma * xhat + beta`, `xhat = (u - mean u) * rstd`. A name with `_dot` is the derivative along
a direction of y; `delta` is the derivative of the potential by `u`, and `by_u` that of its
derivative along the direction. Rows of the direction come before the rows of the point, so that a
product of both is one product.
"""

from __future__ import annotations

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

    by_elements: Tensor  # [2 n, H] delta, then by_u
    from_hidden: tuple[Tensor, ...]
    gammas: tuple[Tensor, ...]
    betas: tuple[Tensor, ...]


class Normalized(NamedTuple):
    """A hidden layer's normalisation at some elements."""

    u: Tensor
    mean: Tensor
    rstd: Tensor


def element_gradient(network: Network, u: Tensor) -> Tensor:
    """The potential's derivative by the pre-activations, `delta [n, H]`.

    `u [n, H]` holds the contributions of x and y alone, and is used up.
    """
    layers, last = [], len(network.sizes) - 1
    for j in range(last):
        layer, h = _normalize(network, u, j)
        layers.append((layer, h))
        _add_product(network, _after(network, u, j), h, network.from_hidden[j].T)
    delta = torch.empty_like(u)
    _columns(network, delta, last).copy_(_columns(network, u, last)).mul_(network.scale)
    for j in reversed(range(last)):
        layer, h = layers[j]
        by_h = _product(network, _after(network, delta, j), network.from_hidden[j])
        by_t = torch.ops.aten.tanh_backward(by_h, h)
        _columns(network, delta, j).copy_(_norm_adjoint(layer, by_t, network.gammas[j]))
    return delta


def element_adjoints(network: Network, us: Tensor) -> Adjoints:
    """The derivatives of `sum of delta * direction`, by everything that `delta` is made of.

    `us [2 n, H]` holds the contributions of the direction, and then those of x and y, alone. It is
    used up.
    """
    num, last = us.shape[0] // 2, len(network.sizes) - 1
    u_dot, u = us[:num], us[num:]
    layers = []
    for j in range(last):
        layer, h = _normalize(network, u, j)
        direction = _columns(network, u_dot, j).contiguous()
        xhat_dot = _norm_adjoint(layer, direction, None)
        h_dot = torch.ops.aten.tanh_backward(network.gammas[j] * xhat_dot, h)
        hs = torch.cat([h_dot, h])
        layers.append((layer, direction, xhat_dot, hs))
        _add_product(network, _after(network, us, j), hs, network.from_hidden[j].T)
    outs = torch.empty_like(us)
    delta, by_u = outs[:num], outs[num:]
    _columns(network, delta, last).copy_(_columns(network, u, last)).mul_(network.scale)
    _columns(network, by_u, last).copy_(_columns(network, u_dot, last)).mul_(network.scale)
    by_hidden: list[Tensor] = []
    by_gamma: list[Tensor] = []
    by_beta: list[Tensor] = []
    for j in reversed(range(last)):
        layer, direction, xhat_dot, hs = layers[j]
        gamma, after = network.gammas[j], _after(network, outs, j)
        by_hidden.append(_product(network, after.T, hs))
        by_hs = _product(network, after, network.from_hidden[j])
        h_dot, h, by_h_dot, by_h = hs[:num], hs[num:], by_hs[:num], by_hs[num:]
        by_t_dot = torch.ops.aten.tanh_backward(by_h_dot, h)
        # h_dot = (1 - h^2) t_dot, so h is read by it as well.
        by_t = torch.ops.aten.tanh_backward(by_h, h).addcmul_(h * by_h_dot, h_dot, value=-2)
        delta_j = _norm_adjoint(layer, by_t_dot, gamma)
        rest, gamma_sum, beta_sum = torch.ops.aten.native_layer_norm_backward(
            by_t, layer.u, [layer.u.shape[1]], layer.mean, layer.rstd, gamma, network.betas[j],
            [True, True, True],
        )  # fmt: skip
        # xhat_dot = rstd (u_dot - mean u_dot - xhat mean(xhat u_dot)) reads xhat and rstd as well.
        # The adjoint of the normalisation is linear, so what that adds needs no further one.
        xhat = (layer.u - layer.mean).mul_(layer.rstd)
        read = by_t_dot * xhat_dot
        along = _row_means(xhat * direction, None)
        across = _row_means(by_t_dot.mul_(xhat), gamma)
        by_rstd = _row_means(read, gamma)
        rest.addcmul_(delta_j, layer.rstd * along, value=-1)
        rest.addcmul_(xhat_dot, layer.rstd * across, value=-1)
        rest.addcmul_(xhat, layer.rstd * by_rstd, value=-1)
        by_gamma.append(gamma_sum.add_(read.sum(0)))
        by_beta.append(beta_sum)
        _columns(network, delta, j).copy_(delta_j)
        _columns(network, by_u, j).copy_(rest)
    return Adjoints(outs, tuple(by_hidden[::-1]), tuple(by_gamma[::-1]), tuple(by_beta[::-1]))


def _normalize(network: Network, u: Tensor, j: int) -> tuple[Normalized, Tensor]:
    own = _columns(network, u, j).contiguous()
    t, mean, rstd = torch.native_layer_norm(
        own, [own.shape[1]], network.gammas[j], network.betas[j], network.eps
    )
    # tanh(t) = 2 sigmoid(2 t) - 1, and torch's sigmoid is many times faster than its tanh on a CPU.
    return Normalized(own, mean, rstd), t.mul_(2).sigmoid_().mul_(2).sub_(1)


def _norm_adjoint(layer: Normalized, by_t: Tensor, gamma: Tensor | None) -> Tensor:
    """The normalisation's adjoint; without gamma also its derivative, the two being one map."""
    return torch.ops.aten.native_layer_norm_backward(
        by_t, layer.u, [layer.u.shape[1]], layer.mean, layer.rstd, gamma, None,
        [True, False, False],
    )[0]  # fmt: skip


def _row_means(values: Tensor, weights: Tensor | None) -> Tensor:
    total = values.sum(1) if weights is None else values @ weights
    return (total / values.shape[1]).unsqueeze(1)


def _columns(network: Network, u: Tensor, j: int) -> Tensor:
    start = sum(network.sizes[:j])
    return u[:, start : start + network.sizes[j]]


def _after(network: Network, u: Tensor, j: int) -> Tensor:
    return u[:, sum(network.sizes[: j + 1]) :]


def _product(network: Network, a: Tensor, b: Tensor) -> Tensor:
    return (a.to(network.product_dtype) @ b.to(network.product_dtype)).to(
        torch.promote_types(a.dtype, b.dtype)
    )


def _add_product(network: Network, total: Tensor, a: Tensor, b: Tensor) -> None:
    if network.product_dtype == total.dtype:
        total.addmm_(a, b)
    else:
        total.add_(_product(network, a, b))
