"""What becomes of a step, by the norms of its gradients. Nothing here waits for the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from equipool.ops.availability import kernels_serve
from equipool.training.guard import DECAY, LARGEST, SETTLED, Guard
from equipool.training.history import History


class Verdict:
    r"""Whether a step is taken, what its gradients are divided by, and its row in the history.

    With the norms $n_p$ of the parameters' gradients, $n = \sqrt{\sum_p n_p^2}$ is judged by the
    guard, and gradients longer than $c$ are cut to that length: they are divided by
    $\max(1, (n + 10^{-6}) / c)$. The row is the losses, $n$, whether the step is skipped, and the
    metrics.

    On a GPU all of this is one kernel.

    Args:
        guard: which steps are skipped.
        history: where the row is written.
        counter: steps taken before, `[1]`; is counted up.
        clip_norm: $c$; None not to cut.
    """

    def __init__(
        self, guard: Guard, history: History, counter: Tensor, clip_norm: float | None
    ) -> None:
        self.guard, self.history, self.counter = guard, history, counter
        self.clip_norm = clip_norm

    @torch.no_grad()
    def __call__(
        self, norms: Tensor, losses: Sequence[Tensor], metrics: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        """Judge a step.

        Args:
            norms: of the gradient of each parameter, `[P]`.
            losses: scalars, the first columns of the history.
            metrics: scalars, its last.

        Returns:
            1 if the step is to be skipped, else 0, float32; and the divisor, where there is one, in
            the norms' precision, float32 at least. Where a step is skipped, it means nothing.
        """
        if kernels_serve(norms):
            return self._fused(norms, losses, metrics)
        return self._plain(norms, losses, metrics)

    def _plain(
        self, norms: Tensor, losses: Sequence[Tensor], metrics: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        kept = torch.promote_types(norms.dtype, torch.float32)
        norm = torch.linalg.vector_norm(norms, dtype=torch.float64).to(kept)
        skipped = self.guard.judge(norm)
        self.history.write(self.counter, [*losses, norm, skipped, *metrics])
        self.counter += 1
        if self.clip_norm is None:
            return skipped, None
        return skipped, ((norm + 1e-6) / self.clip_norm).clamp(min=1)

    def _fused(
        self, norms: Tensor, losses: Sequence[Tensor], metrics: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        from equipool.training import verdict_kernels as kernels

        guard, rows = self.guard, self.history.rows
        values = tuple(value.detach() for value in (*losses, *metrics))
        out = torch.empty(2, dtype=torch.float32, device=rows.device)
        # One warp: what it reads of the state is what it then overwrites.
        kernels.judge[(1,)](
            norms, norms.numel(), values, guard.average, guard.count, self.counter,
            rows, rows.shape[0], out,
            FACTOR=guard.factor, CLIP_NORM=self.clip_norm, DECAY=DECAY, SETTLED=SETTLED,
            LARGEST=LARGEST, NUM_VALUES=len(values), NUM_LOSSES=len(losses), BLOCK=kernels.BLOCK,
            num_warps=1,
        )  # fmt: skip
        skipped, divisor = out.unbind()
        return skipped, None if self.clip_norm is None else divisor
