"""Training of one network of an estimator: how long, on how much at a time, and the steps."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import equipool
from equipool.estimators.bags import Array
from equipool.estimators.network import BagNetwork
from equipool.recipes import AUX_WEIGHT

LossName = Literal["classes", "binary", "numbers"]
Stopped = Literal["max_iter", "n_iter_no_change", "max_seconds"]  # the parameter that stopped it

ELEMENTS = 8192  # per training step, about
LARGEST_BATCH = 64  # bags
SMALLEST_BATCH = 8
FEW = 500  # bags; with fewer, several networks are trained, and none are held out
EPOCHS = 30
STEPS = (150, 4000)  # at least and at most
EVALUATIONS = 20

CLIP_NORM = 1.0
WARMUP = 20  # steps, at most, over which the learning rate rises
AVERAGED_FROM = 500  # steps; an average of the last hundred weights lags too far behind in fewer
DECAY = 0.99  # of that average


def usual_batch_size(sizes: Array, max_elements: int) -> int:
    """Bags per step, so that a step has about `ELEMENTS` elements of bags of these sizes `[B]`."""
    usual = max(float(np.minimum(sizes, max_elements).mean()), 1.0)
    return int(np.clip(ELEMENTS / usual, SMALLEST_BATCH, LARGEST_BATCH))


def usual_steps(num_bags: int, batch_size: int) -> int:
    """Steps that visit each bag 30 times, but at least 150 and at most 4,000.

    Example:
        >>> usual_steps(5000, batch_size=64)
        2343
    """
    return int(np.clip(EPOCHS * num_bags / batch_size, *STEPS))


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

    def take(self, bags: Tensor, most: int, draw: bool = False) -> LabelledBags:
        """The bags at these positions, each with at most so many elements.

        A larger bag is cut into `most` equal parts, and one element is taken from each: one that is
        drawn, or the middle one.
        """
        begin, sizes = self.ptr[bags], self.ptr.diff()[bags]
        kept = sizes.clamp(max=most)
        ptr = functional.pad(kept.cumsum(0), (1, 0))
        bag = torch.arange(len(bags), device=ptr.device).repeat_interleave(kept)
        slot = torch.arange(len(bag), device=ptr.device) - ptr[bag]
        if (sizes > most).any():
            place = torch.rand(len(bag), device=ptr.device) if draw else 0.5
            spread = ((slot + place) * (sizes[bag].double() / most)).long()
            slot = torch.where(sizes[bag] > most, spread.minimum(sizes[bag] - 1), slot)
        return LabelledBags(
            self.elements[begin[bag] + slot], ptr, self.targets[bags], self.weights[bags]
        )


@dataclass(frozen=True)
class Settings:
    """How each network of an estimator is trained."""

    batch_size: int
    steps: int
    whole: bool  # whether a step has all bags
    held_out: int  # validation bags
    patience: int  # evaluations without improvement
    max_elements: int
    learning_rate: float
    weight_decay: float
    max_seconds: float | None
    device: torch.device
    verbose: bool

    @property
    def dtype(self) -> Any:
        """float64 where a step has all bags: the order of the bags, and whether one is repeated or
        has twice the weight, then changes nothing that could be noticed."""
        return np.float64 if self.whole and self.device.type == "cpu" else np.float32

    def rate(self, step: int) -> float:
        """The learning rate, which rises for a few steps and falls to 0 as a cosine does."""
        warmup = min(WARMUP, self.steps // 10)
        if step < warmup:
            return self.learning_rate * (step + 1) / warmup
        progress = (step - warmup) / max(self.steps - warmup, 1)
        return self.learning_rate * (1 + math.cos(math.pi * progress)) / 2


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained network, on the CPU.

    Args:
        history: `loss` per step; with held-out bags also `validation_loss` and `step`.
        stopped: the parameter that ended the training.
    """

    network: BagNetwork
    history: dict[str, Array]
    stopped: Stopped


def train_network(
    make_network: Callable[[], nn.Module], seed: int, data: LabelledBags, loss: LossName,
    settings: Settings,
) -> Trained:  # fmt: skip
    """Train one network by AdamW.

    Every epoch visits each bag once, in a new order; a step has `batch_size` bags and at most
    `max_elements` elements of each, drawn anew. A batch of all bags is always in the same order.
    """
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    held_out = order[: settings.held_out]
    every = max(int(data.ptr.diff().max()), 1)
    training = data.take(order[settings.held_out :], every) if settings.held_out else data
    devices = [settings.device] if settings.device.type == "cuda" else []
    with one_thread(), torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        network: Any = make_network().to(settings.device, training.elements.dtype)
        run = _Run(network, loss, settings)
        batches = _batches(training.to(settings.device), settings, seed)
        validation = data.take(held_out, settings.max_elements).to(settings.device)
        stopped = run.train(batches, validation)
    return Trained(network.cpu().eval(), run.history(), stopped)


class _Run:
    """The steps of one network."""

    def __init__(self, network: nn.Module, loss: LossName, settings: Settings) -> None:
        self.network, self.loss, self.settings = network.train(), loss, settings
        self.weights = list(network.parameters())
        self.adam = torch.optim.AdamW(
            self.weights, weight_decay=settings.weight_decay, fused=True
        )  # fmt: skip
        averaged = settings.steps >= AVERAGED_FROM
        self.average = [one.detach().clone() for one in self.weights] if averaged else None
        self.losses: list[Tensor] = []
        self.evaluations: list[tuple[int, float]] = []

    def train(self, batches: Iterator[LabelledBags], validation: LabelledBags) -> Stopped:
        """Take all steps, or those before a reason to stop. Leaves the network with the average of
        its weights, or with those that were best on the validation bags."""
        settings = self.settings
        stopped: Stopped = "max_iter"
        best: list[Tensor] | None = None
        limit = time.monotonic() + (settings.max_seconds or math.inf)
        worse, every = 0, max(settings.steps // EVALUATIONS, 1)
        for step in range(1, settings.steps + 1):
            self.step(step, next(batches))
            if settings.verbose and (step % every == 0 or step == settings.steps):
                loss = float(self.losses[-1])
                print(f"step {step} of {settings.steps}, training loss {loss:.4g}", flush=True)
            if len(validation) and step % every == 0:
                value = self.evaluate(step, validation)
                worse = 0 if value <= min(one for _, one in self.evaluations) else worse + 1
                if worse == 0:
                    best = [one.detach().clone() for one in self.chosen()]
                if worse >= settings.patience:
                    stopped = "n_iter_no_change"
                    break
            if time.monotonic() >= limit and step < settings.steps:
                stopped = "max_seconds"
                break
        self.fill(best or self.chosen())
        return stopped

    def chosen(self) -> Sequence[Tensor]:
        """The weights that count: their average if there is one."""
        return self.average or self.weights

    def step(self, step: int, batch: LabelledBags) -> None:
        """One step of AdamW with clipped gradients; none if they are not finite."""
        self.adam.zero_grad()
        with equipool.record(diagnostics=False) as solutions:
            loss = self.loss_of(batch)
        # The auxiliary loss by the bags' weights: one of weight 2 counts as two of weight 1.
        weights = batch.weights.mean(1)
        total = loss
        for solution in solutions:
            assert solution.squared_gradient is not None
            total = total + AUX_WEIGHT * (weights * solution.squared_gradient).mean()
        total.backward()
        self.losses.append(total.detach())
        norm = nn.utils.clip_grad_norm_(self.weights, CLIP_NORM)
        if not norm.isfinite():
            warnings.warn(f"the gradient of step {step} is not finite", stacklevel=2)
            return
        for group in self.adam.param_groups:
            group["lr"] = self.settings.rate(step - 1)
        self.adam.step()
        if self.average is not None:  # the first value counts as much as each of the others
            weight = (1 - DECAY) / -math.expm1(step * math.log(DECAY))
            torch._foreach_lerp_(self.average, [one.detach() for one in self.weights], weight)

    @torch.no_grad()
    def evaluate(self, step: int, validation: LabelledBags) -> float:
        """The loss on the validation bags, with the averaged weights."""
        own = [one.clone() for one in self.weights]
        self.fill(self.chosen())
        self.network.eval()
        total = torch.zeros(())
        for bags in torch.arange(len(validation)).split(self.settings.batch_size):
            batch = validation.take(bags.to(validation.ptr.device), self.settings.max_elements)
            total = total + self.loss_of(batch).cpu() * len(bags)
        self.fill(own)
        self.network.train()
        value = float(total / len(validation))
        self.evaluations.append((step, value))
        return value

    def loss_of(self, batch: LabelledBags) -> Tensor:
        outputs = self.network(batch.elements, ptr=batch.ptr)
        return (batch.weights * losses(self.loss, outputs, batch.targets)).mean()

    @torch.no_grad()
    def fill(self, values: Sequence[Tensor]) -> None:
        for weight, value in zip(self.weights, values, strict=True):
            weight.copy_(value)

    def history(self) -> dict[str, Array]:
        found = {"loss": torch.stack(self.losses).cpu().numpy()}
        if self.evaluations:
            steps, values = zip(*self.evaluations, strict=True)
            found |= {"step": np.array(steps), "validation_loss": np.array(values)}
        return found


def _batches(data: LabelledBags, settings: Settings, seed: int) -> Iterator[LabelledBags]:
    """The batches of the steps, without end."""
    if settings.whole and int(data.ptr.diff().max()) <= settings.max_elements:
        while True:  # nothing to draw; gathering would nearly double a step of mean pooling
            yield data
    generator = torch.Generator().manual_seed(seed)
    every = torch.arange(len(data))
    size, order = settings.batch_size, every[:0]
    while True:
        while len(order) < size:
            new = every if settings.whole else torch.randperm(len(data), generator=generator)
            order = torch.cat([order, new])
        bags, order = order[:size].to(data.ptr.device), order[size:]
        yield data.take(bags, settings.max_elements, draw=True)


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


@contextmanager
def one_thread() -> Iterator[None]:
    """torch uses one thread inside the block. Steps are small: several threads gain little, lose
    much beside other processes, and would change the rounding from machine to machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
