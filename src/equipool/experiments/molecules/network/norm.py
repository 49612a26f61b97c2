"""Batch normalisation that ignores padding."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from equipool.ops.availability import kernels_serve


class RealRows(NamedTuple):
    """Which rows of a batch are real, computed once for all layers."""

    weight: Tensor  # [N, 1] float32, 1 where real, else 0
    number: Tensor  # scalar float32, number of real rows, at least 1
    several: Tensor  # scalar float32, 1 if there are at least two: one has no variance

    @classmethod
    def of(cls, mask: Tensor) -> RealRows:
        """From a mask `[N]`, True = real."""
        weight = mask.unsqueeze(-1).float()
        number = weight.sum()
        return cls(weight, number.clamp(min=1), (number >= 2).float())


class MaskedBatchNorm(nn.BatchNorm1d):
    r"""`torch.nn.BatchNorm1d` over the real rows only,

    $$y = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} \, \gamma + \beta, \qquad
    \mu = \frac{1}{n} \sum_{i\,\text{real}} x_i, \quad
    \sigma^2 = \frac{1}{n} \sum_{i\,\text{real}} (x_i - \mu)^2,$$

    computed in float32 or wider. A single real row is normalised to $\beta$; fewer than two real
    rows leave the running statistics unchanged. Torch's own layer raises an error in both cases.

    Padding rows of the output are not zero.

    Example:
        >>> norm = MaskedBatchNorm(1)
        >>> x, real = torch.tensor([[1.0], [3.0], [9.0]]), torch.tensor([True, True, False])
        >>> norm(x, RealRows.of(real))[:2].round(decimals=3)
        tensor([[-1.],
                [ 1.]], grad_fn=<RoundBackward1>)
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    momentum: float

    def forward(self, x: Tensor, rows: RealRows, relu: bool = False) -> Tensor:  # type: ignore[override]
        """Normalise `x [N, C]`; with `relu`, return its positive part."""
        weight, bias = _wide(self.weight), _wide(self.bias)
        if self.training and kernels_serve(x):
            return _Fused.apply(x, rows.weight, weight, bias, self, relu)
        if self.training:
            constants = (rows.weight, rows.number, weight, bias, self.eps)
            y, mean, variance = _Normalize.apply(x, *constants)
            self._track(mean, variance, rows)
        else:
            scale = weight * torch.rsqrt(_wide(self.running_var) + self.eps)
            y = torch.addcmul(bias, _wide(x) - _wide(self.running_mean), scale)
        return (torch.relu(y) if relu else y).to(x.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, rows: RealRows) -> None:
        unbiased = variance * (rows.number / (rows.number - 1).clamp(min=1))
        for running, value in ((self.running_mean, mean), (self.running_var, unbiased)):
            running.lerp_(value.to(running.dtype), (self.momentum * rows.several).to(running.dtype))
        self.num_batches_tracked += 1


class _Normalize(torch.autograd.Function):
    r"""Normalisation by the batch statistics, with its derivative

    $$\frac{\partial L}{\partial x_i} = \frac{\gamma}{\sqrt{\sigma^2 + \epsilon}}
    \Bigl(g_i - \frac{1}{n} \sum_j g_j - \frac{\hat x_i}{n} \sum_j g_j \hat x_j\Bigr)$$

    over real rows, with a third of the memory traffic of automatic differentiation.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, real: Tensor, number: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        x = _real_rows(x, real)
        mean = x.sum(0) / number
        centered = torch.addcmul(x, real, mean, value=-1)
        variance = centered.square().sum(0) / number
        inverse = torch.rsqrt(variance + eps)
        normal = centered * inverse
        ctx.save_for_backward(normal, real, number, weight, inverse)
        ctx.mark_non_differentiable(mean, variance)
        return torch.addcmul(bias, normal, weight), mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        normal, real, number, weight, inverse = ctx.saved_tensors
        gradient = _real_rows(gradients[0], real)
        bias_gradient = gradient.sum(0)
        weight_gradient = (gradient * normal).sum(0)
        by_x = torch.addcmul(gradient, real, bias_gradient / number, value=-1)
        by_x = torch.addcmul(by_x, normal, weight_gradient / number, value=-1)
        return by_x * (weight * inverse), None, None, weight_gradient, bias_gradient, None


class _Fused(torch.autograd.Function):
    """The same including the running statistics and the relu, with two kernels in each direction:
    the time of small batches is determined by the number of kernel launches."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, real: Tensor, weight: Tensor, bias: Tensor, norm: MaskedBatchNorm,
        relu: bool,
    ) -> Tensor:  # fmt: skip
        from equipool.experiments.molecules.network import norm_kernels as kernels

        x = x.contiguous()
        grid, sizes = kernels.launch(x)
        sums = real.new_empty(kernels.RUNS, 3, x.shape[1])
        kernels.moments[grid](x, real, sums, *sizes, **kernels.TILE)
        y, statistics = torch.empty_like(x), sums.new_empty(3, x.shape[1])
        kernels.normalize[grid](
            x, real, sums, weight, bias, y, statistics,
            norm.running_mean, norm.running_var, norm.num_batches_tracked,
            *sizes, norm.eps, norm.momentum, RELU=relu, RUNS=kernels.RUNS, **kernels.TILE,
        )  # fmt: skip
        ctx.save_for_backward(x, real, weight, bias, statistics)
        ctx.relu = relu
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from equipool.experiments.molecules.network import norm_kernels as kernels

        x, real, weight, bias, statistics = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        grid, sizes = kernels.launch(x)
        sums = real.new_empty(kernels.RUNS, 2, x.shape[1])
        kernels.adjoint_sums[grid](
            gradient, x, real, statistics, sums, weight, bias, *sizes,
            RELU=ctx.relu, **kernels.TILE,
        )  # fmt: skip
        by_x, by_weight, by_bias = (torch.empty_like(t) for t in (x, weight, weight))
        kernels.adjoint[grid](
            gradient, x, real, statistics, sums, weight, bias, by_x, by_weight, by_bias,
            *sizes, RELU=ctx.relu, RUNS=kernels.RUNS, **kernels.TILE,
        )  # fmt: skip
        return by_x, None, by_weight, by_bias, None, None


def _real_rows(x: Tensor, real: Tensor) -> Tensor:
    """In float32 or wider, with padding rows set to zero."""
    return torch.where(real > 0, _wide(x), 0.0)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
