"""An exponential moving average of the weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from equipool.training.running import running_statistics


def average_weight(decay: float, step: int) -> float:
    r"""The weight $w_t = (1 - d) / (1 - d^t)$ of the newest of $t$ values in their average."""
    return (1 - decay) / -math.expm1(step * math.log(decay))


class WeightAverage:
    r"""The average of the parameters $\theta_1, \dots, \theta_t$ after each step,

    $$\bar\theta_t = \frac{1 - d}{1 - d^t} \sum_{k=1}^{t} d^{\,t-k} \, \theta_k,
      \qquad\text{by}\qquad
      \bar\theta_t = \bar\theta_{t-1} + w_t \, (\theta_t - \bar\theta_{t-1}).$$

    The start $\theta_0$ is no part of it, so that it need not be forgotten. Kept in float32 at
    least. The running statistics of normalisation layers are averaged in the same way: those after
    the last step belong to its weights, and may be far from what the average of the weights gives.
    """

    def __init__(self, network: nn.Module) -> None:
        self.averaged = dict(network.named_parameters()) | running_statistics(network)
        self.values = {
            name: tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32)).clone()
            for name, tensor in self.averaged.items()
        }
        # The update in one kernel: an ascent from the average, along the weights and less itself.
        self._ascent = torch.optim.SGD(
            self.values.values(), weight_decay=1.0, maximize=True, fused=True
        )

    def tensors(self) -> dict[str, Tensor]:
        """The state, to be written and filled in place."""
        return self.values

    @torch.no_grad()
    def update(self, weight: Tensor) -> None:
        """Take what there is now in, with weight $w_t$, a scalar on the same device."""
        for tensor, value in zip(self._current(), self.values.values(), strict=True):
            value.grad = tensor.detach().to(value.dtype)
        self._ascent.param_groups[0]["lr"] = weight
        self._ascent.step()
        self._ascent.zero_grad()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The network has the average inside the block."""
        kept = [tensor.detach().clone() for tensor in self._current()]
        self._fill(list(self.values.values()))
        try:
            yield
        finally:
            self._fill(kept)

    def _current(self) -> list[Tensor]:
        return list(self.averaged.values())

    @torch.no_grad()
    def _fill(self, values: list[Tensor]) -> None:
        for tensor, value in zip(self._current(), values, strict=True):
            tensor.copy_(value)
