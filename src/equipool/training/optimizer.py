"""What a step does to the network: Adam, the average of the weights, running statistics.

Nothing here waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from equipool import Solver
from equipool.training.config import TrainingConfig


class Optimizer:
    """AdamW in one kernel per group of parameters, with learning rates that are tensors.

    If the inner solvers have a learning rate factor of their own, their parameters form the last
    group; otherwise all parameters are one group.
    """

    def __init__(self, network: nn.Module, config: TrainingConfig, device: torch.device) -> None:
        inner = {
            parameter
            for module in network.modules()
            if isinstance(module, Solver) and config.solver_rate_factor != 1
            for parameter in module.parameters()
        }
        self.names = {p: name for name, p in network.named_parameters() if p.requires_grad}
        if not self.names:
            raise ValueError("the network has no parameters to train")
        groups = [
            ([p for p in self.names if p not in inner], 1.0),
            ([p for p in self.names if p in inner], config.solver_rate_factor),
        ]
        groups = [(parameters, factor) for parameters, factor in groups if parameters]
        self.factors = [factor for _, factor in groups]
        self.adam = torch.optim.AdamW(
            [{"params": parameters} for parameters, _ in groups],
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            fused=True,
            capturable=device.type == "cuda",
        )
        # torch creates the state in the first step; a checkpoint must be loaded before that
        for parameter in self.names:
            self.adam.state[parameter] = {
                "step": torch.zeros((), device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    def tensors(self) -> dict[str, Tensor]:
        """The state, to be saved and loaded in place."""
        return {
            f"{key}/{name}": value
            for parameter, name in self.names.items()
            for key, value in self.adam.state[parameter].items()
        }

    def zero_grad(self) -> None:
        for parameter in self.names:
            parameter.grad = None

    def gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.names if parameter.grad is not None]

    def step(self, rates: Tensor, skipped: Tensor, divisor: Tensor | None) -> None:
        """Take one step, or change nothing (the step count included) if `skipped` is 1.

        Args:
            rates: the learning rates `[groups]`, float32.
            skipped: 1 or 0, float32.
            divisor: divides the gradients, float32 or float64; None for no division.
        """
        if divisor is not None and divisor.dtype == torch.float64:  # torch's Adam reads float32
            torch._foreach_div_(self.gradients(), divisor)
            divisor = None
        for group, rate in zip(self.adam.param_groups, rates.unbind(), strict=True):
            group["lr"] = rate
        # Adam's hooks for scaled losses divide and skip in the kernel that reads the gradients.
        self.adam.found_inf = skipped  # type: ignore[attr-defined]
        self.adam.grad_scale = divisor  # type: ignore[attr-defined]
        self.adam.step()


def average_weight(decay: float, step: int) -> float:
    r"""The weight $w_t = (1 - d) / (1 - d^t)$ of the newest of $t$ values in their average."""
    return (1 - decay) / -math.expm1(step * math.log(decay))


class WeightAverage:
    r"""The moving average of the parameters $\theta_1, \dots, \theta_t$ after each step,

    $$\bar\theta_t = \frac{1 - d}{1 - d^t} \sum_{k=1}^{t} d^{\,t-k} \, \theta_k,
      \qquad\text{computed as}\qquad
      \bar\theta_t = \bar\theta_{t-1} + w_t \, (\theta_t - \bar\theta_{t-1}).$$

    The initial parameters $\theta_0$ are not part of it. The average is kept in float32 or better.
    Running statistics of normalisation layers are averaged as well: those after the last step
    belong to its weights and may be far from what the averaged weights produce.
    """

    def __init__(self, network: nn.Module) -> None:
        self.averaged = dict(network.named_parameters()) | running_statistics(network)
        self.values = {
            name: tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32)).clone()
            for name, tensor in self.averaged.items()
        }
        # One kernel for all: gradient ascent from the average, along the weights minus itself.
        self._ascent = torch.optim.SGD(
            self.values.values(), weight_decay=1.0, maximize=True, fused=True
        )

    def tensors(self) -> dict[str, Tensor]:
        """The state, to be saved and loaded in place."""
        return self.values

    @torch.no_grad()
    def update(self, weight: Tensor) -> None:
        """Move the average towards the current values by $w_t$, a scalar on the same device."""
        for tensor, value in zip(self._current(), self.values.values(), strict=True):
            value.grad = tensor.detach().to(value.dtype)
        self._ascent.param_groups[0]["lr"] = weight
        self._ascent.step()
        self._ascent.zero_grad()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside the block the network has the averaged values."""
        kept = [tensor.detach().clone() for tensor in self._current()]
        self.apply()
        try:
            yield
        finally:
            self._fill(kept)

    def apply(self) -> None:
        """Give the network the averaged values."""
        self._fill(list(self.values.values()))

    def _current(self) -> list[Tensor]:
        return list(self.averaged.values())

    @torch.no_grad()
    def _fill(self, values: list[Tensor]) -> None:
        for tensor, value in zip(self._current(), values, strict=True):
            tensor.copy_(value)


class RunningStatistics:
    """The running statistics of a network, so that a skipped step can undo their change.

    The buffers become views of one tensor per dtype, which one operation copies or restores.
    """

    def __init__(self, network: nn.Module) -> None:
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for buffer in running_statistics(network).values():
            by_dtype.setdefault(buffer.dtype, []).append(buffer)
        self._joined = [_join(buffers) for buffers in by_dtype.values()]

    def copy(self) -> list[Tensor]:
        """A copy of the current values."""
        return [joined.clone() for joined in self._joined]

    def restore(self, before: Sequence[Tensor], skipped: Tensor) -> None:
        """Restore a copy if `skipped`, a scalar, is above zero."""
        for joined, value in zip(self._joined, before, strict=True):
            torch.where(skipped > 0, value, joined, out=joined)


def running_statistics(network: nn.Module) -> dict[str, Tensor]:
    """The buffers that normalisation layers update in training, by their names in the network."""
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
