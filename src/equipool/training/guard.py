"""Steps that must not be taken, recognised without waiting for the device."""

from __future__ import annotations

import torch
from torch import Tensor

DECAY = 0.99  # of the running average of the gradient's norm
SETTLED = 100  # finite norms that the average is taken over before it is trusted
LARGEST = torch.finfo(torch.float32).max


class Guard:
    r"""Whether a step is skipped, by the norm $n$ of its gradient.

    A step is skipped if $n$ is not finite, or if $n > c\,a$, where $a$ is the running average of
    the finite norms before it. While there are fewer than 100 of those, or all were zero, no finite
    norm is too long. The average is moved towards $\min(n, c\,a)$ by every finite step, skipped
    ones as well: where gradients have grown for good it follows, and steps are taken again.

    Args:
        factor: $c$; None to skip only what is not finite.
        device: where the norms are.
    """

    def __init__(self, factor: float | None, device: torch.device) -> None:
        self.factor = factor
        self.average = torch.zeros((), device=device)
        self.count = torch.zeros((), dtype=torch.int64, device=device)  # of finite norms

    def tensors(self) -> dict[str, Tensor]:
        """The state, to be written and filled in place."""
        return {"average": self.average, "count": self.count}

    def judge(self, norm: Tensor) -> Tensor:
        """1 if the step is to be skipped, else 0, as float32; takes the norm into the average.

        Args:
            norm: of the gradient, a scalar.
        """
        norm = norm.float()
        finite = norm <= LARGEST
        limit = self._limit()
        self.count += finite
        weight = (1 / self.count.clamp(min=1)).clamp(min=1 - DECAY)
        moved = torch.lerp(self.average, torch.minimum(norm, limit), weight)
        torch.where(finite, moved, self.average, out=self.average)
        # NaN is not at most anything, and the limit is finite
        return 1 - (norm <= limit).float()

    def _limit(self) -> Tensor:
        if self.factor is None:
            return torch.full_like(self.average, LARGEST)
        trusted = (self.count >= SETTLED) & (self.average > 0)
        limit = (self.factor * self.average).clamp(max=LARGEST)
        return limit.masked_fill(~trusted, LARGEST)
