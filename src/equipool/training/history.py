"""What each step leaves behind, kept on the device until it is read."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

SPIKE = 10.0  # a loss that is so many times the median is a spike
WINDOW = 1000  # losses that the median is taken over
FEWEST = 100  # losses without which there is no median


class History:
    """A row of numbers for every step since the last point of the log.

    `rows [length, columns]`, float32, where the row of step s is `s % length`. A step writes its
    row on the device; the host reads all of them at once.
    """

    def __init__(self, columns: Sequence[str], length: int, device: torch.device) -> None:
        self.columns = tuple(columns)
        self.rows = torch.zeros(length, len(self.columns), device=device)

    @torch.no_grad()
    def write(self, step: Tensor, values: Sequence[Tensor]) -> None:
        """Write the row of `step [1]`, an integer on the device; the values are scalars."""
        row = torch.stack([value.float() for value in values])
        self.rows.index_copy_(0, step % self.rows.shape[0], row[None])

    def read(self, num_steps: int) -> dict[str, Tensor]:
        """The columns of the steps since the last point, `num_steps` having been taken in all.
        Waits for the device."""
        length = self.rows.shape[0]
        since = num_steps % length or min(length, num_steps)
        rows = self.rows[:since].cpu()
        return dict(zip(self.columns, rows.unbind(1), strict=True))


class Spikes:
    """Counts spikes: steps whose loss exceeds ten times the running median.

    The running median of a step is that of the up to 1,000 finite losses before the point of the
    log that the step is counted at; while there are fewer than 100, nothing is a spike. Steps that
    are skipped count as well, unless their loss is NaN.
    """

    def __init__(self) -> None:
        self.count = 0
        self.recent = torch.zeros(0)

    def take(self, losses: Tensor) -> int:
        """The spikes among further losses `[n]`."""
        found = 0
        if len(self.recent) >= FEWEST:
            found = int((losses > SPIKE * self.recent.median()).sum())
        self.recent = torch.cat([self.recent, losses[torch.isfinite(losses)]])[-WINDOW:]
        self.count += found
        return found
