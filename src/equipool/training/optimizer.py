"""What a step does with the gradients: its numbers, the guard, Adam, the average of the weights,
running statistics. Nothing here waits for the device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from equipool.training.config import TrainingConfig

DECAY = 0.99  # of the running average of the gradient norm
SETTLED = 100  # number of finite norms before the average is trusted
LARGEST = torch.finfo(torch.float32).max


class History:
    """A row of numbers for each recent step, kept on the device until the host reads it.

    `rows [length, columns]`, float32; step s has row `s % length`. `counter [1]` is the number of
    steps taken.
    """

    def __init__(self, columns: Sequence[str], length: int, device: torch.device) -> None:
        self.columns = tuple(columns)
        self.rows = torch.zeros(length, len(self.columns), device=device)
        self.counter = torch.zeros(1, dtype=torch.int64, device=device)

    @torch.no_grad()
    def write(self, values: Sequence[Tensor]) -> None:
        """Write the row of the next step; the values are scalars."""
        row = torch.stack([value.float() for value in values])
        self.rows.index_copy_(0, self.counter % self.rows.shape[0], row[None])
        self.counter += 1

    def read(self, first: int, last: int) -> dict[str, Tensor]:
        """The columns of steps `first` to `last - 1`, at most `length` of them. Waits for the
        device."""
        at = torch.arange(first, last) % self.rows.shape[0]
        return dict(zip(self.columns, self.rows.cpu()[at].unbind(1), strict=True))


class Guard:
    r"""Decides from the gradient norm $n$ whether a step is skipped, and by what to divide the
    gradients otherwise.

    A step is skipped if $n$ is not finite, or if $n > c\,a$, where $a$ is the running average of
    the finite norms before it. Until there are 100 of those, and while all were zero, any finite
    norm is accepted. Every finite step moves the average towards $\min(n, c\,a)$, even if it is
    skipped: when gradients have grown for good, the average follows and steps are taken again.

    Gradients longer than $m$ are clipped: they are divided by $\max(1, (n + 10^{-6}) / m)$.

    `factor` is $c$, `clip_norm` is $m$; None for neither.
    """

    def __init__(self, factor: float | None, clip_norm: float | None, device: torch.device) -> None:
        self.factor, self.clip_norm = factor, clip_norm
        self.average = torch.zeros((), device=device)
        self.count = torch.zeros((), dtype=torch.int64, device=device)  # finite norms

    def tensors(self) -> dict[str, Tensor]:
        return {"average": self.average, "count": self.count}

    @torch.no_grad()
    def __call__(self, norms: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Judge a step by the gradient norm of each parameter `[P]`.

        Returns $n$; 1 if the step is skipped, else 0, float32; and the divisor of the gradients,
        which is None without clipping and meaningless if the step is skipped.
        """
        kept = torch.promote_types(norms.dtype, torch.float32)
        norm = torch.linalg.vector_norm(norms, dtype=torch.float64).to(kept)
        divisor = None
        if self.clip_norm is not None:
            divisor = ((norm + 1e-6) / self.clip_norm).clamp(min=1)
        return norm, self.judge(norm), divisor

    def judge(self, norm: Tensor) -> Tensor:
        """1 if a step with this gradient norm (a scalar) is skipped, else 0, as float32; updates
        the average."""
        norm = norm.float()
        finite = norm <= LARGEST
        limit = torch.full_like(self.average, LARGEST)
        if self.factor is not None:
            trusted = (self.count >= SETTLED) & (self.average > 0)
            limit = torch.where(trusted, (self.factor * self.average).clamp(max=LARGEST), limit)
        self.count += finite
        weight = (1 / self.count.clamp(min=1)).clamp(min=1 - DECAY)
        moved = torch.lerp(self.average, torch.minimum(norm, limit), weight)
        torch.where(finite, moved, self.average, out=self.average)
        return 1 - (norm <= limit).float()  # the comparison is false for NaN


class Optimizer:
    """AdamW in one kernel, with a learning rate that is a tensor."""

    def __init__(self, network: nn.Module, config: TrainingConfig, device: torch.device) -> None:
        self.names = {p: name for name, p in network.named_parameters() if p.requires_grad}
        if not self.names:
            raise ValueError("the network has no parameters to train")
        self.adam = torch.optim.AdamW(
            self.names, weight_decay=config.weight_decay, fused=True,
            capturable=device.type == "cuda",
        )  # fmt: skip
        # torch creates the state in the first step; a checkpoint must be loaded before that
        for parameter in self.names:
            self.adam.state[parameter] = {
                "step": torch.zeros((), device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    def tensors(self) -> dict[str, Tensor]:
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

    def step(self, rate: Tensor, skipped: Tensor, divisor: Tensor | None) -> None:
        """Take one step with this learning rate, float32, and gradients divided by `divisor`,
        float32 or float64; or change nothing (the step count included) if `skipped`, float32, is
        1."""
        if divisor is not None and divisor.dtype == torch.float64:  # torch's Adam reads float32
            torch._foreach_div_(self.gradients(), divisor)
            divisor = None
        self.adam.param_groups[0]["lr"] = rate
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
        averaged = dict(network.named_parameters()) | running_statistics(network)
        self._current = list(averaged.values())
        self.values = {
            name: tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32)).clone()
            for name, tensor in averaged.items()
        }
        # One kernel for all: gradient ascent from the average, along the weights minus itself.
        self._ascent = torch.optim.SGD(
            self.values.values(), weight_decay=1.0, maximize=True, fused=True
        )

    @torch.no_grad()
    def update(self, weight: Tensor) -> None:
        """Move the average towards the current values by $w_t$, a scalar on the same device."""
        for tensor, value in zip(self._current, self.values.values(), strict=True):
            value.grad = tensor.detach().to(value.dtype)
        self._ascent.param_groups[0]["lr"] = weight
        self._ascent.step()
        self._ascent.zero_grad()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside the block the network has the averaged values."""
        kept = [tensor.detach().clone() for tensor in self._current]
        self._fill(list(self.values.values()))
        try:
            yield
        finally:
            self._fill(kept)

    @torch.no_grad()
    def _fill(self, values: list[Tensor]) -> None:
        for tensor, value in zip(self._current, values, strict=True):
            tensor.copy_(value)


def restore_(tensors: Sequence[Tensor], before: Sequence[Tensor], skipped: Tensor) -> None:
    """Replace tensors with their values `before` if `skipped`, a scalar, is above zero."""
    for tensor, value in zip(tensors, before, strict=True):
        torch.where(skipped > 0, value, tensor, out=tensor)


def running_statistics(network: nn.Module) -> dict[str, Tensor]:
    """The buffers that normalisation layers update in training, by their names in the network."""
    return {
        name: buffer
        for prefix, module in network.named_modules()
        if getattr(module, "track_running_stats", False)
        for name, buffer in module.named_buffers(prefix, recurse=False)
        if buffer.is_floating_point()
    }
