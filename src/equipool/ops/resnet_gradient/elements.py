"""The gradient and its vector-Jacobian product for some elements, in torch operations.

Notation, for one element: `u` are the pre-activations of all layers, `h = tanh(t)`,
`t = gamma * xhat + beta`, `xhat = (u - mean u) * rstd`. A name with `_dot` is the derivative along
a direction of y; `delta` is the derivative of the potential by `u`, and `by_u` that of its
derivative along the direction.
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
    steep_gammas: tuple[Tensor, ...]  # times -2
    steep_betas: tuple[Tensor, ...]


class Columns(NamedTuple):
    """A number for each pre-activation of some rows, layer by layer.

    The first layer is by itself, so that its normalisation reads and gives it where it lies; the
    others are side by side, so that one product takes or gives all of them.
    """

    first: Tensor  # [n, sizes[0]]
    others: Tensor  # [n, sum of sizes[1:]]

    def of(self, sizes: Sequence[int], j: int) -> Tensor:
        """The columns of layer j."""
        if j == 0:
            return self.first
        start = sum(sizes[1:j])
        return self.others[:, start : start + sizes[j]]

    def after(self, sizes: Sequence[int], j: int) -> Tensor:
        """The columns of the layers after j."""
        return self.others[:, sum(sizes[1 : j + 1]) :]

    def replace(self, sizes: Sequence[int], j: int, values: Tensor) -> Columns:
        """The same with other numbers for layer j, which are written over the old ones."""
        if j == 0:
            return Columns(values, self.others)
        self.of(sizes, j).copy_(values)
        return self


class Sums(NamedTuple):
    """Derivatives by the parameters, while they are added up over the elements."""

    from_hidden: tuple[Tensor, ...]
    gammas: tuple[Tensor, ...]
    betas: tuple[Tensor, ...]


class Kept(NamedTuple):
    """What `element_gradient` took matrix products for, and `element_adjoints` would again."""

    others: Tensor  # the pre-activations of the layers after the first
    by_h: tuple[Tensor, ...]  # the potential's derivative by each hidden layer's h


class Layer(NamedTuple):
    """A hidden layer at some elements."""

    u: Tensor
    mean: Tensor
    rstd: Tensor
    h: Tensor


class Tangent(NamedTuple):
    """The derivative of a hidden layer along the direction."""

    u: Tensor
    xhat: Tensor
    h: Tensor


def element_value(network: Network, u: Columns) -> Tensor:
    """The potential of each element, `[n]`. `u` is as for `element_gradient`."""
    last = len(network.sizes) - 1
    for j in range(last):
        h = _activate(network, u, j).h
        _add_product(network, u.after(network.sizes, j), h, network.from_hidden[j].T)
    return u.of(network.sizes, last).square().sum(1).mul_(network.scale / 2)


def element_gradient(network: Network, u: Columns) -> tuple[Columns, Kept]:
    """The potential's derivative by the pre-activations, `delta`, and what may be kept.

    `u` holds the contributions of x and y alone, and is used up.
    """
    sizes, layers = network.sizes, []
    for j, weight in enumerate(network.from_hidden):
        layers.append(_activate(network, u, j))
        _add_product(network, u.after(sizes, j), layers[j].h, weight.T)
    delta, by_hs = Columns(u.first, u.others.clone()), []
    delta.of(sizes, len(layers)).mul_(network.scale)
    for j in reversed(range(len(layers))):
        by_h = _product(network, delta.after(sizes, j), network.from_hidden[j])
        by_t = torch.ops.aten.tanh_backward(by_h, layers[j].h)
        delta = delta.replace(sizes, j, _norm_adjoint(layers[j], by_t, network.gammas[j]))
        by_hs.append(by_h)
    return delta, Kept(u.others, tuple(by_hs[::-1]))


def element_adjoints(
    network: Network, u: Columns, u_dot: Columns, sums: Sums | None, kept: Kept | None
) -> tuple[Columns, Columns]:
    """The derivatives of `sum of delta * direction`, by everything that `delta` is made of: by what
    the direction gives, which is `delta`, by what x and y give, `by_u`, and those by the parameters
    are added to the sums.

    `u` holds the contributions of x and y alone, `u_dot` those of the direction. Both are used up.
    What was kept of `element_gradient` at the same point is not computed again, and stays.
    """
    sizes, last = network.sizes, len(network.sizes) - 1
    if kept is not None:
        u = Columns(u.first, kept.others.clone())
    layers, tangents = [], []
    for j, weight in enumerate(network.from_hidden):
        layer = _activate(network, u, j)
        tangent = _activate_along(layer, u_dot.of(sizes, j).contiguous(), network.gammas[j])
        if kept is None:
            _add_product(network, u.after(sizes, j), layer.h, weight.T)
        _add_product(network, u_dot.after(sizes, j), tangent.h, weight.T)
        layers.append(layer)
        tangents.append(tangent)
    delta, by_u = u, u_dot  # the last layer's are the other's derivatives, but for the scale
    delta.of(sizes, last).mul_(network.scale)
    by_u.of(sizes, last).mul_(network.scale)
    for j in reversed(range(last)):
        layer, tangent = layers.pop(), tangents.pop()
        delta_after, by_after = delta.after(sizes, j), by_u.after(sizes, j)
        if sums is not None:
            _add_product(network, sums.from_hidden[j], delta_after.T, tangent.h)
            _add_product(network, sums.from_hidden[j], by_after.T, layer.h)
        weight = network.from_hidden[j]
        delta_j, by_u_j = _hidden_adjoints(
            network, j, layer, tangent,
            _product(network, delta_after, weight) if kept is None else kept.by_h[j],
            _product(network, by_after, weight),
            sums,
        )  # fmt: skip
        delta = delta.replace(sizes, j, delta_j)
        by_u = by_u.replace(sizes, j, by_u_j)
    return delta, by_u


def _hidden_adjoints(
    network: Network,
    j: int,
    layer: Layer,
    tangent: Tangent,
    by_h_dot: Tensor,
    by_h: Tensor,
    sums: Sums | None,
) -> tuple[Tensor, Tensor]:
    """`delta` and `by_u` of a hidden layer."""
    size, gamma, h = layer.u.shape[1], network.gammas[j], layer.h
    by_t_dot = torch.ops.aten.tanh_backward(by_h_dot, h)
    # h_dot = (1 - h^2) t_dot, so h is read by it as well.
    by_t = torch.ops.aten.tanh_backward(by_h, h).addcmul_(by_h_dot * h, tangent.h, value=-2)
    delta = _norm_adjoint(layer, by_t_dot, gamma)
    by_u, gamma_sum, beta_sum = torch.ops.aten.native_layer_norm_backward(
        by_t, layer.u, [size], layer.mean, layer.rstd, gamma, network.betas[j],
        [True, sums is not None, sums is not None],
    )  # fmt: skip
    # xhat_dot = rstd (u_dot - mean u_dot - xhat mean(xhat u_dot)) reads xhat and rstd as well.
    # The adjoint of the normalisation is linear, so what that adds needs no further one.
    xhat = (layer.u - layer.mean).mul_(layer.rstd)
    read = by_t_dot * tangent.xhat
    if sums is not None:
        sums.gammas[j].add_(gamma_sum).add_(read.sum(0))
        sums.betas[j].add_(beta_sum)
    weight, column = layer.rstd / -size, gamma.unsqueeze(1)
    along = (tangent.u.mul_(xhat)).sum(1, keepdim=True).mul_(weight)
    across = (by_t_dot.mul_(xhat) @ column).mul_(weight)
    by_rstd = (read @ column).mul_(weight)
    by_u.addcmul_(delta, along).addcmul_(tangent.xhat, across).addcmul_(xhat, by_rstd)
    return delta, by_u


def _activate(network: Network, u: Columns, j: int) -> Layer:
    own = u.of(network.sizes, j).contiguous()
    # tanh(t) = 1 - 2 sigmoid(-2 t), and torch's sigmoid is many times faster than its tanh on a
    # CPU.
    t, mean, rstd = torch.native_layer_norm(
        own, [own.shape[1]], network.steep_gammas[j], network.steep_betas[j], network.eps
    )
    return Layer(own, mean, rstd, torch.rsub(t.sigmoid_(), 1, alpha=2))


def _activate_along(layer: Layer, u_dot: Tensor, gamma: Tensor) -> Tangent:
    xhat_dot = _norm_adjoint(layer, u_dot, None)
    return Tangent(u_dot, xhat_dot, torch.ops.aten.tanh_backward(gamma * xhat_dot, layer.h))


def _norm_adjoint(layer: Layer, by_t: Tensor, gamma: Tensor | None) -> Tensor:
    """The normalisation's adjoint; without gamma also its derivative, the two being one map."""
    return torch.ops.aten.native_layer_norm_backward(
        by_t, layer.u, [layer.u.shape[1]], layer.mean, layer.rstd, gamma, None,
        [True, False, False],
    )[0]  # fmt: skip


def _product(network: Network, a: Tensor, b: Tensor) -> Tensor:
    if network.product_dtype == a.dtype:
        return a @ b
    return (a.to(network.product_dtype) @ b.to(network.product_dtype)).to(a.dtype)


def _add_product(network: Network, total: Tensor, a: Tensor, b: Tensor) -> None:
    if network.product_dtype == total.dtype:
        total.addmm_(a, b)
    else:
        total.add_(_product(network, a, b))
