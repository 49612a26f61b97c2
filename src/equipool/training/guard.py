"""Steps that must not be taken, recognised without waiting for the device."""

from __future__ import annotations

import torch
from torch import Tensor

DECAY = 0.99  # of the running average of the gradient's norm
SETTLED = 100  # steps that the average is taken over before it is trusted
LARGEST = torch.finfo(torch.float32).max


class Guard:
    r"""Whether a step is skipped, by the norm $n$ of its gradient.

    A step is skipped if $n$ is not finite, or if $n > c\,a$, where $a$ is the running average of
    the norms before it, from the hundredth step on. The average is moved towards
    $\min(n, c\,a)$ by every finite step, skipped ones as well: where gradients have grown for good
    it follows, and steps are taken again.

    Args:
        factor: $c$; None to skip only what is not finite.
        device: where the norms are.
    """

    num_numbers = 3

    def __init__(self, factor: float | None, device: torch.device) -> None:
        self.factor = factor
        self.average = torch.zeros((), device=device)

    def tensors(self) -> dict[str, Tensor]:
        """The state, to be written and filled in place."""
        return {"average": self.average}

    def numbers(self, step: int) -> list[float]:
        """What `judge` needs of the host: the limit's two parts, and the average's weight."""
        weight = max(1 - DECAY, 1 / (step + 1))
        if self.factor is None or step < SETTLED:
            return [LARGEST, 0.0, weight]
        return [0.0, self.factor, weight]

    def judge(self, norm: Tensor, numbers: Tensor) -> Tensor:
        """1 if the step is to be skipped, else 0, as float32; takes the norm into the average.

        Args:
            norm: of the gradient, a scalar.
            numbers: those of the step, `[3]`.
        """
        constant, factor, weight = numbers.unbind()
        norm = norm.float()
        limit = torch.addcmul(constant, factor, self.average)
        moved = torch.lerp(self.average, torch.minimum(norm, limit), weight)
        torch.where(torch.isfinite(norm), moved, self.average, out=self.average)
        # NaN is not at most anything
        return 1 - (norm <= limit).float()
