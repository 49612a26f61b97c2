"""The gradient of the summed potential in torch operations, as one differentiable operation, and
the choice between it and the Triton one.

The vector-Jacobian product computes activations again where it needs them, so a solve of many steps
keeps one `y` per step and nothing per element. Only the first steps, within a bound on memory, keep
the results of their matrix products.

Notation, for one element: `u` are the pre-activations of all layers, `h = tanh(t)`,
`t = gamma * xhat + beta`, `xhat = (u - mean u) * rstd`. A name with `_dot` is the derivative along
a direction of y; `delta` is the gradient of the potential in `u`, and `by_u` that of its
derivative along the direction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from equipool.ops import segments
from equipool.ops.execution import is_batched, is_exporting, kernels_serve
from equipool.ops.resnet_gradient.folding import (
    ALIGNMENT,
    BATCHED,
    SECOND,
    Affine,
    Maps,
    Parameters,
    Spec,
    fold,
    unavailable,
)
from equipool.private_torch import is_transforming

if TYPE_CHECKING:
    from equipool.ops.resnet_gradient.triton import TritonGradient

# Pre-activations at a time on the CPU, so that what is computed for them stays in its caches.
# Not too many rows either: a sum over them is taken one after the other, and loses digits.
CPU_FLOATS = 1 << 19
CPU_ROWS = 4096

# What the steps of a solve may keep for the backward pass, in multiples of `x_part`, which a solve
# holds in any case, and in all: a few steps of a batch that fits a CPU. Later steps compute again.
KEPT_PARTS = 7
KEPT_FLOATS = 1 << 24


def make_gradient(
    spec: Spec, maps: Maps, norms: Sequence[Affine], x: Tensor, index: Tensor, num_rows: int
) -> TorchGradient | TritonGradient:
    """The potential summed over sets, and its derivatives with respect to y.

    The contribution of x to the network is computed here, once for all steps of a solve.

    Args:
        spec: shape and precision of the potential.
        maps: its layers and skips, in float32 at least.
        norms: scale and shift of each hidden layer's normalisation.
        x: elements in set order, `[N, C]`.
        index: row of each element, `[N]`, ascending.
        num_rows: rows of y.
    """
    serve = kernels_serve(x) and x.shape[0] > 0
    folded = fold(*maps, x.shape[1], ALIGNMENT if serve else 1)
    parameters = (*folded.from_hidden, *(gamma for gamma, _ in norms), *(beta for _, beta in norms))
    if serve:
        from equipool.ops.resnet_gradient.triton import TritonGradient

        # It is read at every step: in the precision of the products that are added to it.
        operands = (folded.constant, x, folded.from_x.T)
        x_part = torch.addmm(*(operand.to(spec.product_dtype) for operand in operands))
        return TritonGradient(spec, (x_part, folded.from_y, *parameters), index, num_rows)
    product = x.to(spec.product_dtype) @ folded.from_x.T.to(spec.product_dtype)
    x_part = product.to(folded.constant.dtype) + folded.constant
    return TorchGradient(spec, (x_part, folded.from_y, *parameters), index)


class TorchGradient:
    """The summed potential of one batch and its derivatives with respect to y.

    `shared` is what all steps of a solve read: `x_part [N, H]`, the contribution of x and the
    constants to the pre-activations; `from_y [H, K]`; for each hidden layer the matrix by which the
    layers after it read it; scales and shifts of the normalisations. `index [N]` is ascending.
    """

    def __init__(self, spec: Spec, shared: Sequence[Tensor], index: Tensor) -> None:
        self.spec, self.shared, self.index = spec, tuple(shared), index
        x_part = self.shared[0]
        eager = x_part.device.type == "cpu" and not torch.compiler.is_compiling()
        self._room = min(KEPT_PARTS * x_part.numel(), KEPT_FLOATS) if eager else 0

    def value(self, y: Tensor) -> Tensor:
        """The potential of each row, `[num_rows, K] -> [num_rows]`, without a graph."""
        spec, (x_part, from_y, *rest) = self.spec, self.shared
        network = Network(spec, Parameters.of(rest))
        y_part = _columns(spec, y @ from_y.T)
        total = y.new_zeros(y.shape[0])
        for chunk in _chunks(x_part, self.index):
            values = network.value(_pre_activations(spec, x_part, y_part, chunk))
            total = _add_segments(total, chunk, values)
        return total

    def gradient(self, y: Tensor) -> Tensor:
        """Its gradient in y, `[num_rows, K]`; differentiable once more."""
        tensors = (y, *self.shared)
        differentiated = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        if is_exporting() or (torch.compiler.is_compiling() and not differentiated):
            # Plain operations, so that the program can be loaded without equipool.
            return summed_gradient(self.spec, False, y, self.index, *self.shared)[0]
        # Whether there is room to keep one more evaluation's products.
        floats = (sum(self.spec.sizes[:-1]) + sum(self.spec.sizes[1:])) * self.index.shape[0]
        keep = differentiated and floats <= self._room
        self._room -= floats if keep else 0
        return _Gradient.apply(self.spec, keep, y, self.index, *self.shared)[0]

    def hessian_product(self, direction: Tensor, y: Tensor) -> Tensor:
        """The derivative of `sum of direction * gradient` by y, without a graph: the Hessian is
        symmetric."""
        spec, (x_part, from_y, *rest) = self.spec, self.shared
        network = Network(spec, Parameters.of(rest))
        y_part, y_part_dot = (_columns(spec, rows @ from_y.T) for rows in (y, direction))
        total = _zeros_like(y_part)
        for chunk in _chunks(x_part, self.index):
            u = _pre_activations(spec, x_part, y_part, chunk)
            _, by_u = network.adjoints(u, _spread(y_part_dot, chunk.row_of), None, ())
            total = _add_columns(total, chunk, by_u)
        return torch.cat(total, 1) @ from_y


def summed_gradient(
    spec: Spec, keep: bool, y: Tensor, index: Tensor, *shared: Tensor
) -> tuple[Tensor, ...]:
    """The gradient in y, and what `summed_vjp` would otherwise compute again, chunk by chunk."""
    x_part, from_y, *rest = shared
    network = Network(spec, Parameters.of(rest))
    all_kept: list[Tensor] = []
    y_part = _columns(spec, y @ from_y.T)
    total = _zeros_like(y_part)
    for chunk in _chunks(x_part, index):
        delta, kept = network.gradient(_pre_activations(spec, x_part, y_part, chunk))
        total = _add_columns(total, chunk, delta)
        if keep:
            all_kept += kept
    return torch.cat(total, 1) @ from_y, *all_kept


def summed_vjp(
    spec: Spec, num_kept: int, by_gradient: Tensor, *saved: Tensor
) -> tuple[Tensor, ...]:
    """Cotangents of y and of `shared`, given that of the gradient, what `summed_gradient` kept, y,
    the index and `shared`. A row with a zero cotangent contributes nothing, even if non-finite."""
    kept, (y, index, x_part, from_y, *rest) = iter(saved[:num_kept]), saved[num_kept:]
    live, num_rows = by_gradient.any(-1), y.shape[0]
    y = torch.where(live.unsqueeze(-1), y, 0)
    network = Network(spec, Parameters.of(rest))
    points = torch.cat([by_gradient, y])
    y_parts = points @ from_y.T
    y_part_dot, y_part = _columns(spec, y_parts[:num_rows]), _columns(spec, y_parts[num_rows:])
    by_parameters = tuple(torch.zeros_like(parameter) for parameter in rest)
    sums = Parameters.of(by_parameters)
    by_x_part = torch.empty_like(x_part)
    delta_sum, by_y_part = _zeros_like(y_part), _zeros_like(y_part)
    for chunk in _chunks(x_part, index):
        mine = tuple(islice(kept, len(spec.sizes)))
        alive: Tensor | None = live[chunk.row_of].unsqueeze(-1)
        if chunk.segments is not None and bool(live[chunk.row_of].all()):
            alive = None
        if alive is not None:
            mine = tuple(torch.where(alive, part, 0) for part in mine)
        u = _pre_activations(spec, x_part, y_part, chunk, alive)
        delta, by_u = network.adjoints(u, _spread(y_part_dot, chunk.row_of), sums, mine)
        for total, part in zip(_columns(spec, by_x_part[chunk.rows]), by_u, strict=True):
            total.copy_(part)
        delta_sum = _add_columns(delta_sum, chunk, delta)
        by_y_part = _add_columns(by_y_part, chunk, by_u)
    both = torch.cat([torch.cat(delta_sum, 1), torch.cat(by_y_part, 1)])
    return both[num_rows:] @ from_y, by_x_part, both.T @ points, *by_parameters


class _OneByOne(torch.autograd.Function):
    """Calls in a batch are made one after the other: each is large enough to fill the machine."""

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        pairs = list(zip(inputs, in_dims, strict=True))
        outputs = [
            cls.apply(*(v if dim is None else v.select(dim, i) for v, dim in pairs))
            for i in range(info.batch_size)
        ]
        stacked = tuple(torch.stack(column) for column in zip(*outputs, strict=True))
        return stacked, (0,) * len(stacked)


class _Gradient(_OneByOne):
    forward = staticmethod(summed_gradient)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        spec, _, *tensors = inputs
        kept = output[1:]
        ctx.spec, ctx.num_tensors, ctx.num_kept = spec, len(tensors), len(kept)
        ctx.mark_non_differentiable(*kept)
        ctx.save_for_backward(*kept, *tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, by_gradient: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if by_gradient is None:  # nothing depends on it
            return (None,) * (2 + ctx.num_tensors)
        if not is_transforming() and is_batched(by_gradient):
            raise unavailable(BATCHED)
        # No second gradient passes through a compiled region, so nothing is lost there.
        vjp = summed_vjp if torch.compiler.is_compiling() else _Vjp.apply
        # A backward pass that is run inside autocast must not round what the forward did not.
        with torch.autocast(by_gradient.device.type, enabled=False):
            by_y, *by_shared = vjp(ctx.spec, ctx.num_kept, by_gradient, *ctx.saved_tensors)
        return None, None, by_y, None, *by_shared


class _Vjp(_OneByOne):
    forward = staticmethod(summed_vjp)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *by_outputs: Tensor) -> Any:
        raise unavailable(SECOND)


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


class _Chunk(NamedTuple):
    """A run of the elements."""

    rows: slice  # which elements
    row_of: Tensor  # the row of each
    segments: slice | None  # the rows that they are in, where values may be read


def _chunks(x_part: Tensor, index: Tensor) -> Iterator[_Chunk]:
    if torch.compiler.is_compiling() or x_part.device.type != "cpu":
        yield _Chunk(slice(None), index, None)
        return
    num, most = len(index), min(max(CPU_FLOATS // x_part.shape[1], 1), CPU_ROWS)
    num_chunks = -(-num // most)
    for i in range(num_chunks):
        rows = slice(num * i // num_chunks, num * (i + 1) // num_chunks)
        here = index[rows]
        yield _Chunk(rows, here, slice(int(here[0]), int(here[-1]) + 1))


def _columns(spec: Spec, u: Tensor) -> Columns:
    return Columns(*u.tensor_split((spec.sizes[0],), dim=1))


def _pre_activations(
    spec: Spec, x_part: Tensor, y_part: Columns, chunk: _Chunk, alive: Tensor | None = None
) -> Columns:
    """The contributions of x and y; those of x alone to elements that are alive, if given."""
    u = _spread(y_part, chunk.row_of)
    for total, part in zip(u, _columns(spec, x_part[chunk.rows]), strict=True):
        total.add_(part if alive is None else torch.where(alive, part, 0))
    return u


def _zeros_like(columns: Columns) -> Columns:
    return Columns(*(part.new_zeros(part.shape) for part in columns))


def _spread(rows: Columns, index: Tensor) -> Columns:
    """Give each element the row of its segment."""
    return Columns(*(segments.segment_spread(part, index) for part in rows))


def _add_columns(total: Columns, chunk: _Chunk, values: Columns) -> Columns:
    return Columns(
        *(_add_segments(t, chunk, v.contiguous()) for t, v in zip(total, values, strict=True))
    )


def _add_segments(total: Tensor, chunk: _Chunk, values: Tensor) -> Tensor:
    """Add the sums of consecutive elements to the totals of their rows.

    The sum over a chunk is taken by itself before it is added, so that a sum over a million
    elements does not lose digits to its own size.
    """
    index, rows, num_rows = chunk.row_of, chunk.segments, total.shape[0]
    if rows is not None:
        total[rows] += segments.segment_sum(values, index - rows.start, rows.stop - rows.start)
        return total
    if segments.blocks_are_wanted(values.shape[0]):
        return total + segments.block_sum(values, segments.make_blocks(index, num_rows), num_rows)
    return total + segments.segment_sum(values, index, num_rows)
