"""Training on bags, as the engine wants it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

import equipool
from equipool.checks import values_are_at_hand
from equipool.recipes import AUX_WEIGHT
from equipool.training import Batch, Loss, Shard, Task

LossName = Literal["classes", "binary", "numbers"]


@dataclass(frozen=True, eq=False)
class LabelledBags:
    """Bags with their targets, as tensors on one device."""

    elements: Tensor  # [N, d]
    ptr: Tensor  # [B + 1]
    targets: Tensor  # [B, T]; 0 where missing
    weights: Tensor  # [B, T] of each target in the loss, 1 on average; 0 where missing

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def to(self, device: torch.device) -> LabelledBags:
        return LabelledBags(*(value.to(device) for value in vars(self).values()))

    def take(self, positions: Tensor) -> LabelledBags:
        """The bags at these positions, on the CPU."""
        sizes = self.ptr.diff()[positions]
        ptr = functional.pad(sizes.cumsum(0), (1, 0))
        first = (self.ptr[positions] - ptr[:-1]).repeat_interleave(sizes)
        rows = torch.arange(int(ptr[-1])) + first
        targets, weights = self.targets[positions], self.weights[positions]
        return LabelledBags(self.elements[rows], ptr, targets, weights)


def sampled_rows(
    begin: Tensor, sizes: Tensor, length: int, draw: Tensor | float
) -> tuple[Tensor, Tensor]:
    """The rows of `length` elements of each bag, or of all if it has no more: `[B, length]`, and
    which of them are real, `[B, length]`.

    A larger bag is cut into `length` equal parts, and one element is taken from each, at the place
    `draw` (from 0 to below 1, or a tensor `[B, length]` of those) of the part.
    """
    slot = torch.arange(length, device=begin.device)
    sizes = sizes.unsqueeze(-1)
    width = sizes.double() / length
    spread = ((slot + draw) * width).long()
    position = torch.where(sizes > length, torch.minimum(spread, sizes - 1), slot)
    real = slot < sizes
    return torch.where(real, begin.unsqueeze(-1) + position, 0), real


class BagTask(Task):
    """Learn the targets of bags.

    Every epoch visits each bag once, in a new order; a step has `batch_size` bags and at most
    `max_elements` elements of each, drawn anew. A batch of all bags is always in the same order.
    """

    name: ClassVar[str] = "estimator"
    monitor: ClassVar[str] = "loss"

    def __init__(
        self, make_network: Callable[[], nn.Module], loss: LossName, training: LabelledBags,
        validation: LabelledBags | None, *, batch_size: int, max_elements: int, seed: int,
        title: str,
    ) -> None:  # fmt: skip
        self._make_network, self._loss = make_network, loss
        self._training, self._validation = training, validation
        self.batch_size, self.seed = min(batch_size, len(training)), seed
        self._max_elements, self._title = max_elements, title
        largest = int(training.ptr.diff().max())
        self._length, self._samples = min(largest, max_elements), largest > max_elements

    @property
    def title(self) -> str:
        return self._title

    @property
    def monitor_title(self) -> str:
        return "loss without dropout" if self._validation is None else "validation loss"

    def network(self) -> nn.Module:
        return self._make_network()

    def batches(self, first_step: int, num_steps: int, device: torch.device, shard: Shard) -> Batch:
        self._training = self._training.to(device)  # once: later calls find it there
        count, size = len(self._training), self.batch_size
        if size == count:
            bags = torch.arange(count).expand(num_steps, -1)
        else:
            first, last = first_step * size, (first_step + num_steps) * size
            epochs = range(first // count, -(-last // count))
            order = torch.cat([self._order(epoch) for epoch in epochs])
            start = first - epochs.start * count
            bags = order[start : start + num_steps * size].view(num_steps, size)
        return {"bags": shard.part(bags, 1).to(device)}

    def _order(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        return torch.randperm(len(self._training), generator=generator)

    def loss(self, network: nn.Module, batch: Batch) -> Loss:
        bags = batch["bags"]
        draw: Tensor | float = 0.0  # nothing is drawn unless it is needed: see SharedDropout
        if self._samples:
            draw = torch.rand(len(bags), self._length, device=bags.device)
        with equipool.record(diagnostics=False) as solutions:
            loss = self._loss_of(network, self._training, bags, self._length, draw)
        # The auxiliary loss by the bags' weights: one of weight 2 counts as two of weight 1.
        weights = self._training.weights[bags].mean(1)
        for solution in solutions:
            assert solution.squared_gradient is not None
            loss = loss + AUX_WEIGHT * (weights * solution.squared_gradient).mean()
        return Loss(loss)

    def evaluate(self, network: nn.Module, device: torch.device) -> dict[str, float]:
        """The loss of the validation bags, at most `max_elements` of each; without such bags, of
        the training bags of a batch."""
        if self._validation is None:
            bags = torch.arange(self.batch_size, device=device)
            loss = self._loss_of(network, self._training, bags, self._length, 0.5)
            return {"loss": loss.item()}
        self._validation = self._validation.to(device)
        losses = []
        for bags in torch.arange(len(self._validation), device=device).split(self.batch_size):
            sizes = self._validation.ptr.diff()[bags]
            length = min(int(sizes.max()), self._max_elements)
            loss = self._loss_of(network, self._validation, bags, max(length, 1), 0.5)
            losses.append(loss * len(bags))
        return {"loss": (torch.stack(losses).sum() / len(self._validation)).item()}

    def _loss_of(
        self, network: nn.Module, data: LabelledBags, bags: Tensor, length: int,
        draw: Tensor | float,
    ) -> Tensor:  # fmt: skip
        begin, end = data.ptr[bags], data.ptr[bags + 1]
        rows, real = sampled_rows(begin, end - begin, length, draw)
        if values_are_at_hand(real):  # no element is computed in vain
            index = torch.arange(len(bags)).repeat_interleave(real.sum(1))
            outputs = network(data.elements[rows[real]], index, dim_size=len(bags))
        else:
            x = torch.where(real.unsqueeze(-1), data.elements[rows], 0)
            outputs = network(x, mask=real)
        return (data.weights[bags] * losses(self._loss, outputs, data.targets[bags])).mean()


def losses(name: LossName, outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of each target, `[B, T]`."""
    match name:
        case "classes":
            classes = targets.squeeze(-1).long()
            return functional.cross_entropy(outputs, classes, reduction="none").unsqueeze(-1)
        case "binary":
            return functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
        case "numbers":
            return (outputs - targets).square()
