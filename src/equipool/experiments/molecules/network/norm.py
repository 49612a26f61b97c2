"""Batch normalisation that ignores padding."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from equipool.checks import values_are_at_hand
from equipool.ops.execution import kernels_serve
from equipool.potentials.base import wide


class RealRows(NamedTuple):
    """Which rows of a batch are real, computed once for all layers."""

    weight: Tensor  # [N, 1] float32, 1 where real, else 0
    number: Tensor  # scalar float32, number of real rows, at least 1
    several: Tensor  # scalar float32, 1 if there are at least two: one has no variance
    leading: int | None  # number of real rows if they come first, where that waits for nothing

    @classmethod
    def of(cls, mask: Tensor) -> RealRows:
        """From a mask `[N]`, True = real."""
        weight = mask.unsqueeze(-1).float()
        number, leading = weight.sum(), None
        if values_are_at_hand(mask) and bool(mask[: int(number)].all()):
            leading = int(number)
        return cls(weight, number.clamp(min=1), (number >= 2).float(), leading)


class MaskedBatchNorm(nn.BatchNorm1d):
    r"""`torch.nn.BatchNorm1d` over the real rows only,

    $$y = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} \, \gamma + \beta, \qquad
    \mu = \frac{1}{n} \sum_{i\,\text{real}} x_i, \quad
    \sigma^2 = \frac{1}{n} \sum_{i\,\text{real}} (x_i - \mu)^2,$$

    computed in float32 or wider. A single real row is normalised to $\beta$; fewer than two real
    rows leave the running statistics unchanged. Torch's own layer raises an error in both cases.

    Padding rows of the output hold some finite numbers and pass no gradient.

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
        weight, bias = wide(self.weight), wide(self.bias)
        if self.training and kernels_serve(x):
            return _Fused.apply(x, rows.weight, weight, bias, self, relu)
        same_dtype = self.running_mean.dtype == torch.promote_types(x.dtype, torch.float32)
        if self.training and (rows.leading or 0) >= 2 and same_dtype:
            y = super().forward(wide(x[: rows.leading]))  # on a CPU several times faster
            y = functional.pad(y, (0, 0, 0, x.shape[0] - y.shape[0]))
        elif self.training:
            y = self._normalize(wide(x), rows, weight, bias)
        else:
            scale = weight * torch.rsqrt(wide(self.running_var) + self.eps)
            y = torch.addcmul(bias, wide(x) - wide(self.running_mean), scale)
        return (torch.relu(y) if relu else y).to(x.dtype)

    def _normalize(self, x: Tensor, rows: RealRows, weight: Tensor, bias: Tensor) -> Tensor:
        real = rows.weight > 0
        x = torch.where(real, x, 0)
        mean = x.sum(0) / rows.number
        centered = torch.where(real, x - mean, 0)
        variance = centered.square().sum(0) / rows.number
        self._track(mean, variance, rows)
        y = torch.addcmul(bias, centered * torch.rsqrt(variance + self.eps), weight)
        return torch.where(real, y, bias.detach())

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, rows: RealRows) -> None:
        unbiased = variance * (rows.number / (rows.number - 1).clamp(min=1))
        for running, value in ((self.running_mean, mean), (self.running_var, unbiased)):
            running.lerp_(value.to(running.dtype), (self.momentum * rows.several).to(running.dtype))
        self.num_batches_tracked += 1


class _Fused(torch.autograd.Function):
    r"""Normalisation, running statistics and relu with two kernels in each direction: the time of
    small batches is determined by the number of kernel launches. The derivative over real rows is

    $$\frac{\partial L}{\partial x_i} = \frac{\gamma}{\sqrt{\sigma^2 + \epsilon}}
    \Bigl(g_i - \frac{1}{n} \sum_j g_j - \frac{\hat x_i}{n} \sum_j g_j \hat x_j\Bigr).$$
    """

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
        read = (gradient, x, real, statistics, sums, weight, bias)
        kernels.adjoint_sums[grid](*read, *sizes, RELU=ctx.relu, **kernels.TILE)
        outs = tuple(torch.empty_like(tensor) for tensor in (x, weight, weight))
        kernels.adjoint[grid](
            *read, *outs, *sizes, RELU=ctx.relu, RUNS=kernels.RUNS, **kernels.TILE
        )
        return outs[0], None, *outs[1:], None, None
