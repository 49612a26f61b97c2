"""Which steps are skipped and which gradients are clipped. Nothing here waits for the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from equipool.ops.availability import kernels_serve
from equipool.training.state import History

DECAY = 0.99  # of the running average of the gradient norm
SETTLED = 100  # number of finite norms before the average is trusted
LARGEST = torch.finfo(torch.float32).max


class Guard:
    r"""Decides from the gradient norm $n$ whether a step is skipped, and by what to divide the
    gradients otherwise.

    A step is skipped if $n$ is not finite, or if $n > c\,a$, where $a$ is the running average of
    the finite norms before it. Until there are 100 of those, and while all were zero, any finite
    norm is accepted. Every finite step moves the average towards $\min(n, c\,a)$, even if it is
    skipped: when gradients have grown for good, the average follows and steps are taken again.

    Gradients longer than $m$ are clipped: they are divided by $\max(1, (n + 10^{-6}) / m)$.

    Each step also writes its row of the history: losses, $n$, whether it is skipped, metrics. On a
    GPU all of this is one kernel.

    Args:
        factor: $c$; None to skip only steps whose norm is not finite.
        clip_norm: $m$; None for no clipping.
        history: receives the rows.
    """

    def __init__(self, factor: float | None, clip_norm: float | None, history: History) -> None:
        self.factor, self.clip_norm, self.history = factor, clip_norm, history
        device = history.rows.device
        self.average = torch.zeros((), device=device)
        self.count = torch.zeros((), dtype=torch.int64, device=device)  # finite norms

    def tensors(self) -> dict[str, Tensor]:
        """The state, to be saved and loaded in place."""
        return {"average": self.average, "count": self.count}

    @torch.no_grad()
    def __call__(
        self, norms: Tensor, losses: Sequence[Tensor], metrics: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        """Judge a step.

        Args:
            norms: the gradient norm of each parameter `[P]`.
            losses: scalars, the first columns of the history.
            metrics: scalars, its last columns.

        Returns:
            1 if the step is skipped, else 0, float32; and the divisor of the gradients, float32 or
            better, which is None without clipping and meaningless if the step is skipped.
        """
        if kernels_serve(norms):
            return self._fused(norms, losses, metrics)
        kept = torch.promote_types(norms.dtype, torch.float32)
        norm = torch.linalg.vector_norm(norms, dtype=torch.float64).to(kept)
        skipped = self.judge(norm)
        self.history.write([*losses, norm, skipped, *metrics])
        if self.clip_norm is None:
            return skipped, None
        return skipped, ((norm + 1e-6) / self.clip_norm).clamp(min=1)

    def judge(self, norm: Tensor) -> Tensor:
        """1 if a step with this gradient norm (a scalar) is skipped, else 0, as float32; updates
        the average."""
        norm = norm.float()
        finite = norm <= LARGEST
        limit = self._limit()
        self.count += finite
        weight = (1 / self.count.clamp(min=1)).clamp(min=1 - DECAY)
        moved = torch.lerp(self.average, torch.minimum(norm, limit), weight)
        torch.where(finite, moved, self.average, out=self.average)
        return 1 - (norm <= limit).float()  # the comparison is false for NaN

    def _limit(self) -> Tensor:
        if self.factor is None:
            return torch.full_like(self.average, LARGEST)
        trusted = (self.count >= SETTLED) & (self.average > 0)
        limit = (self.factor * self.average).clamp(max=LARGEST)
        return limit.masked_fill(~trusted, LARGEST)

    def _fused(
        self, norms: Tensor, losses: Sequence[Tensor], metrics: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        from equipool.training import guard_kernels as kernels

        rows = self.history.rows
        values = tuple(value.detach() for value in (*losses, *metrics))
        out = torch.empty(2, dtype=torch.float32, device=rows.device)
        # One warp, because the program overwrites the state that it reads.
        kernels.judge[(1,)](
            norms, norms.numel(), values, self.average, self.count, self.history.counter,
            rows, rows.shape[0], out,
            FACTOR=self.factor, CLIP_NORM=self.clip_norm, DECAY=DECAY, SETTLED=SETTLED,
            LARGEST=LARGEST, NUM_VALUES=len(values), NUM_LOSSES=len(losses), BLOCK=kernels.BLOCK,
            num_warps=1,
        )  # fmt: skip
        skipped, divisor = out.unbind()
        return skipped, None if self.clip_norm is None else divisor
