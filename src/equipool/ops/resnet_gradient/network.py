"""The network at some elements in torch operations: value, gradient, and the adjoint of that.

Notation, for one element: `u` are the pre-activations of all layers, `h = tanh(t)`,
`t = gamma * xhat + beta`, `xhat = (u - mean u) * rstd`. A name with `_dot` is the derivative along
a direction of y; `delta` is the gradient of the potential in `u`, and `by_u` that of its
derivative along the direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from equipool.ops.resnet_gradient.folding import Spec


class Parameters(NamedTuple):
    """A tensor for each hidden layer: what is learned, or its cotangents."""

    from_hidden: tuple[Tensor, ...]
    gammas: tuple[Tensor, ...]
    betas: tuple[Tensor, ...]

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Parameters:
        hidden, every = len(tensors) // 3, tuple(tensors)
        return cls(every[:hidden], every[hidden : 2 * hidden], every[2 * hidden :])


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


class Hidden(NamedTuple):
    """A hidden layer at some elements."""

    u: Tensor
    mean: Tensor
    rstd: Tensor
    h: Tensor


class Tangent(NamedTuple):
    """The derivative of a hidden layer along the direction."""

    layer: Hidden
    u: Tensor
    xhat: Tensor
    h: Tensor


class Network:
    """The network at some elements. `u` holds the contributions of x and y alone to the
    pre-activations, `u_dot` those of the direction; both are used up."""

    def __init__(self, spec: Spec, parameters: Parameters) -> None:
        self.spec = spec
        self.from_hidden, self.gammas, self.betas = parameters
        self.steep_gammas = [-2 * gamma for gamma in self.gammas]
        self.steep_betas = [-2 * beta for beta in self.betas]

    def value(self, u: Columns) -> Tensor:
        """The potential of each element, `[n]`."""
        sizes = self.spec.sizes
        for j, weight in enumerate(self.from_hidden):
            self._add_product(u.after(sizes, j), self._activate(u, j).h, weight.T)
        return u.of(sizes, len(sizes) - 1).square().sum(1).mul_(self.spec.scale / 2)

    def gradient(self, u: Columns) -> tuple[Columns, tuple[Tensor, ...]]:
        """The potential's gradient in the pre-activations, `delta`, and what may be kept for
        `adjoints`, which would take matrix products for it again: the pre-activations of the layers
        after the first, and the cotangent of each hidden layer's h."""
        sizes, layers = self.spec.sizes, []
        for j, weight in enumerate(self.from_hidden):
            layers.append(self._activate(u, j))
            self._add_product(u.after(sizes, j), layers[j].h, weight.T)
        delta, by_hs = Columns(u.first, u.others.clone()), []
        delta.of(sizes, len(layers)).mul_(self.spec.scale)
        for j in reversed(range(len(layers))):
            by_h = self._product(delta.after(sizes, j), self.from_hidden[j])
            by_t = torch.ops.aten.tanh_backward(by_h, layers[j].h)
            delta = delta.replace(sizes, j, _norm_adjoint(layers[j], by_t, self.gammas[j]))
            by_hs.append(by_h)
        return delta, (u.others, *by_hs[::-1])

    def adjoints(
        self, u: Columns, u_dot: Columns, sums: Parameters | None, kept: tuple[Tensor, ...]
    ) -> tuple[Columns, Columns]:
        """The derivatives of `sum of delta * direction`, by everything that `delta` is made of: by
        what the direction gives, which is `delta`, by what x and y give, `by_u`, and those by the
        parameters are added to the sums. What was kept of `gradient` at the same point is not
        computed again, and stays."""
        sizes, last = self.spec.sizes, len(self.spec.sizes) - 1
        if kept:
            u = Columns(u.first, kept[0].clone())
        tangents = []
        for j, weight in enumerate(self.from_hidden):
            layer = self._activate(u, j)
            tangent = _activate_along(layer, u_dot.of(sizes, j).contiguous(), self.gammas[j])
            if not kept:
                self._add_product(u.after(sizes, j), layer.h, weight.T)
            self._add_product(u_dot.after(sizes, j), tangent.h, weight.T)
            tangents.append(tangent)
        delta, by_u = u, u_dot  # the last layer's are the other's derivatives, but for the scale
        delta.of(sizes, last).mul_(self.spec.scale)
        by_u.of(sizes, last).mul_(self.spec.scale)
        for j in reversed(range(last)):
            tangent, weight = tangents.pop(), self.from_hidden[j]
            delta_after, by_after = delta.after(sizes, j), by_u.after(sizes, j)
            if sums is not None:
                self._add_product(sums.from_hidden[j], delta_after.T, tangent.h)
                self._add_product(sums.from_hidden[j], by_after.T, tangent.layer.h)
            by_h_dot = kept[1 + j] if kept else self._product(delta_after, weight)
            by_h = self._product(by_after, weight)
            delta_j, by_u_j = self._hidden_adjoints(j, tangent, by_h_dot, by_h, sums)
            delta = delta.replace(sizes, j, delta_j)
            by_u = by_u.replace(sizes, j, by_u_j)
        return delta, by_u

    def _hidden_adjoints(
        self, j: int, tangent: Tangent, by_h_dot: Tensor, by_h: Tensor, sums: Parameters | None
    ) -> tuple[Tensor, Tensor]:
        """`delta` and `by_u` of a hidden layer."""
        layer, gamma = tangent.layer, self.gammas[j]
        size, h = layer.u.shape[1], layer.h
        by_t_dot = torch.ops.aten.tanh_backward(by_h_dot, h)
        # h_dot = (1 - h^2) t_dot, so h is read by it as well.
        by_t = torch.ops.aten.tanh_backward(by_h, h).addcmul_(by_h_dot * h, tangent.h, value=-2)
        delta = _norm_adjoint(layer, by_t_dot, gamma)
        by_u, gamma_sum, beta_sum = torch.ops.aten.native_layer_norm_backward(
            by_t, layer.u, [size], layer.mean, layer.rstd, gamma, self.betas[j],
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

    def _activate(self, u: Columns, j: int) -> Hidden:
        own = u.of(self.spec.sizes, j).contiguous()
        # tanh(t) = 1 - 2 sigmoid(-2 t): on a CPU torch's sigmoid is far faster than its tanh.
        t, mean, rstd = torch.native_layer_norm(
            own, [own.shape[1]], self.steep_gammas[j], self.steep_betas[j], self.spec.eps
        )
        return Hidden(own, mean, rstd, torch.rsub(t.sigmoid_(), 1, alpha=2))

    def _product(self, a: Tensor, b: Tensor) -> Tensor:
        dtype = self.spec.product_dtype
        return a @ b if dtype == a.dtype else (a.to(dtype) @ b.to(dtype)).to(a.dtype)

    def _add_product(self, total: Tensor, a: Tensor, b: Tensor) -> None:
        if self.spec.product_dtype == total.dtype:
            total.addmm_(a, b)
        else:
            total.add_(self._product(a, b))


def _activate_along(layer: Hidden, u_dot: Tensor, gamma: Tensor) -> Tangent:
    xhat_dot = _norm_adjoint(layer, u_dot, None)
    h_dot = torch.ops.aten.tanh_backward(gamma * xhat_dot, layer.h)
    return Tangent(layer, u_dot, xhat_dot, h_dot)


def _norm_adjoint(layer: Hidden, by_t: Tensor, gamma: Tensor | None) -> Tensor:
    """The normalisation's adjoint; without gamma also its derivative, the two being one map."""
    size, mask = [layer.u.shape[1]], [True, False, False]
    return torch.ops.aten.native_layer_norm_backward(
        by_t, layer.u, size, layer.mean, layer.rstd, gamma, None, mask
    )[0]
