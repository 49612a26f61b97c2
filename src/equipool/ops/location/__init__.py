"""The minimum of a separable convex penalty in each set: expectiles to quantiles, exactly."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipool.ops.derivatives import is_plain_backward
from equipool.ops.execution import kernels_serve, values_decide
from equipool.ops.fused import fused_loops_serve
from equipool.ops.location import naive

MAX_PASSES = 80
TRACED_PASSES = 32  # where no value may decide
FLOOR = 1e-2


class Located(NamedTuple):
    """The minimum of each set and how it was found."""

    y: Tensor  # [B, A, F]
    error: Tensor  # [B, A, F] bound of y's error; infinite where the passes did not suffice
    passes: Tensor  # [B] passes over each set

    @property
    def converged(self) -> Tensor:
        """Whether every channel of a set is at its minimum, `[B]`."""
        return self.error.isfinite().flatten(1).all(-1)


def locate(
    x: Tensor, index: Tensor, counts: Tensor, tau: Tensor, delta: Tensor,
    weight: Tensor | None = None, ridge: Tensor | None = None, max_passes: int = MAX_PASSES,
) -> Located:  # fmt: skip
    r"""The `y [B, A, F]` of each set with

    $$\sum_i c_i s_i r_i = \text{ridge} \cdot y, \quad u_i = x_i - y, \quad s = u / \delta, \quad
    r = (1 + s^2)^{-1/2}, \quad c = a |\tau - 1(u < 0)|,$$

    which minimises $\sum_i c_i 2 \delta (\sqrt{\delta^2 + u_i^2} - \delta) + \delta\,
    \text{ridge}\, y^2$: a term $w y^2$ of the energy is a ridge of $w / \delta$. Empty sets, and
    those without weight, give 0; a set with a non-finite element gives NaN and passes no gradient.

    The gradient is that of the implicit function. In those of tau and weight alone, the curvature
    is at least `0.01 sum c / max(spread, delta)`: they would explode between a set's middle
    elements.

    Args:
        x: elements `[N, F]` in set order. Shorter dtypes than float32 are computed in it.
        index: the set of each element, ascending, `[N]`.
        counts: elements of each set `[B]`; a set with 0 counts as empty, whatever `index` has.
        tau: asymmetries `[A, F]`, in (0, 1).
        delta: widths `[A, F]`, positive. Infinity gives expectiles, without a ridge.
        weight: `a >= 0`, `[N, H]`; feature f has the head `f * H // F`.
        ridge: `[B or 1, A or 1, F or 1]`, not negative.
        max_passes: how often a set may be read.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    backend = "triton" if kernels_serve(x) else "numba" if fused_loops_serve(x) else "naive"
    if ridge is not None:
        ridge = ridge.expand(counts.shape[0], *tau.shape)
    others = [None if t is None else t.to(dtype).contiguous() for t in (tau, delta, weight, ridge)]
    x = x.to(dtype).contiguous()
    return Located(*_Locate.apply(x, index, counts, *others, backend, max_passes))


class _Locate(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, index: Tensor, counts: Tensor, tau: Tensor, delta: Tensor,
        weight: Tensor | None, ridge: Tensor | None, backend: str, max_passes: int,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        given = x, index, counts, tau, delta, weight, ridge
        if backend == "naive" and not values_decide(x):
            max_passes = min(max_passes, TRACED_PASSES)
        solution: tuple[Tensor, Tensor, Tensor] = _module(backend).solve(*given, max_passes)
        return solution

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *given, ctx.backend, _ = inputs
        ctx.save_for_backward(*given, output[0])
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, by_y: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        backend = "naive" if is_plain_backward(by_y) else ctx.backend
        by_x, *others = _module(backend).adjoint(by_y, ctx.saved_tensors, FLOOR)
        return by_x, None, None, *others, None, None


def _module(backend: str) -> ModuleType:
    """The kernels need packages of their own."""
    return naive if backend == "naive" else import_module(f"equipool.ops.location.{backend}")
