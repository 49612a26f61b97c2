"""What normalisation layers gather as they run. A step that is skipped does not move it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class RunningStatistics:
    """The running statistics of a network, moved to one place in memory, where a single operation
    keeps or restores those of all layers.

    Args:
        network: its buffers become parts of larger tensors, and keep their values.
    """

    def __init__(self, network: nn.Module) -> None:
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for buffer in running_statistics(network).values():
            by_dtype.setdefault(buffer.dtype, []).append(buffer)
        self._joined = [_join(buffers) for buffers in by_dtype.values()]

    def copy(self) -> list[Tensor]:
        """As they are now."""
        return [joined.clone() for joined in self._joined]

    def restore(self, before: Sequence[Tensor], skipped: Tensor) -> None:
        """Put a copy back where `skipped`, a scalar, is above zero."""
        for joined, value in zip(self._joined, before, strict=True):
            torch.where(skipped > 0, value, joined, out=joined)


def running_statistics(network: nn.Module) -> dict[str, Tensor]:
    """The buffers that normalisation layers change as they run, by their names in the network."""
    return {
        name: buffer
        for prefix, module in network.named_modules()
        if getattr(module, "track_running_stats", False)
        for name, buffer in module.named_buffers(prefix, recurse=False)
        if buffer.is_floating_point()
    }


def _join(buffers: Sequence[Tensor]) -> Tensor:
    joined = torch.cat([buffer.flatten() for buffer in buffers])
    parts = joined.split([buffer.numel() for buffer in buffers])
    for buffer, part in zip(buffers, parts, strict=True):
        buffer.data = part.view_as(buffer)
    return joined
