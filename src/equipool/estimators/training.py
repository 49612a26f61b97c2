"""The network of an estimator, and its training: how long, on how much at a time, and the steps."""

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
from equipool.aggregation import EquilibriumAggregation
from equipool.baselines import aggregation_from_name
from equipool.estimators.bags import Array
from equipool.recipes import AUX_WEIGHT, converging
from equipool.regularizers import SquaredNorm
from equipool.sets import Sets

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

# Initial weight. On inner splits 0.3 scored slightly better than the recipe's 1. Within 40 steps
# 99 % of the jets converged; with 0.1 only 38 % did.
REGULARIZER_WEIGHT = 0.3


class BagNetwork(nn.Module):
    r"""Predicts one row of numbers for each bag:

    $$\mathrm{head}(\mathrm{aggregation}(\{\mathrm{encoder}(x_i)\})).$$

    Args:
        in_channels: size of an element.
        out_channels: size of a bag's prediction.
        aggregation: a name in `equipool.baselines.AGGREGATIONS`, or a function that makes a module
            of two sizes, those of an encoded element and of a pooled bag, with the layer's call.
            `"equilibrium"` has the settings of `equipool.converging`, with a weaker regulariser.
        hidden_size: size of an encoded element, a linear map and a ReLU; 0 for the element itself.
        channels: size of a pooled bag.
        dropout: dropout rate of the encoded elements and of the pooled bag (see `SharedDropout`).
        set_size: the usual number of elements, for the aggregations that scale by it.

    Shapes:
        As in `equipool.EquilibriumAggregation`: `x [N, in_channels]` with `index` or `ptr`,
        `x [B, L, in_channels]` with `mask`, or a jagged nested tensor -> `[B, out_channels]`.

    Example:
        >>> network = BagNetwork(3, 1)
        >>> network(torch.randn(5, 3), torch.tensor([0, 0, 1, 1, 1])).shape
        torch.Size([2, 1])
    """

    def __init__(
        self, in_channels: int, out_channels: int, *,
        aggregation: str | Callable[[int, int], nn.Module] = "equilibrium",
        hidden_size: int = 64, channels: int = 32, dropout: float = 0.0, set_size: int = 100,
    ) -> None:  # fmt: skip
        super().__init__()
        self.encoder = nn.Sequential()
        if hidden_size:
            self.encoder.extend(
                [nn.Linear(in_channels, hidden_size), nn.ReLU(), SharedDropout(dropout)]
            )
        sizes = hidden_size or in_channels, channels
        self.aggregation: nn.Module
        if callable(aggregation):
            self.aggregation = aggregation(*sizes)
        elif aggregation == "equilibrium":
            settings = converging() | {"regularizer": SquaredNorm(REGULARIZER_WEIGHT)}
            self.aggregation = EquilibriumAggregation(*sizes, **settings)
        else:
            self.aggregation = aggregation_from_name(aggregation, *sizes, set_size=set_size)
        self.head = nn.Sequential(SharedDropout(dropout), nn.Linear(channels, out_channels))

    def forward(
        self, x: Tensor, index: Tensor | Sets | None = None, *, ptr: Tensor | None = None,
        mask: Tensor | None = None, dim_size: int | None = None,
    ) -> Tensor:  # fmt: skip
        """Predict for each bag. The arguments are those of the layer."""
        pooled = self.aggregation(self.encoder(x), index, ptr=ptr, mask=mask, dim_size=dim_size)
        return self.head(pooled)


class SharedDropout(nn.Module):
    """Dropout of whole channels: those that are dropped are the same for all elements and bags of a
    call. An element is then encoded alike wherever it occurs, and two copies of a bag count as much
    as one of twice the weight.

    Args:
        rate: the share of channels that are dropped in training.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        return x * functional.dropout(x.new_ones(x.shape[-1]), self.rate)

    def extra_repr(self) -> str:
        return f"{self.rate:g}"


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
    held_out, training = order[: settings.held_out], data
    if settings.held_out:
        training = data.take(order[settings.held_out :], max(int(data.ptr.diff().max()), 1))
    devices = [settings.device] if settings.device.type == "cuda" else []
    with one_thread(), torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        network: Any = make_network().to(settings.device, training.elements.dtype)
        run = _Run(network, loss, settings)
        batches = _batches(training.to(settings.device), settings, seed)
        validation = data.take(held_out, settings.max_elements).to(settings.device)
        stopped = run.train(batches, validation)
    history = {"loss": torch.stack(run.losses).cpu().numpy()}
    if run.evaluations:
        history["step"] = np.array(list(run.evaluations))
        history["validation_loss"] = np.array(list(run.evaluations.values()))
    return Trained(network.cpu().eval(), history, stopped)


class _Run:
    """The steps of one network."""

    def __init__(self, network: nn.Module, loss: LossName, settings: Settings) -> None:
        self.network, self.loss, self.settings = network.train(), loss, settings
        self.weights: list[Tensor] = list(network.parameters())
        self.adam = torch.optim.AdamW(
            self.weights, weight_decay=settings.weight_decay, fused=True
        )  # fmt: skip
        # The weights that count: their average in a long training.
        averaged = settings.steps >= AVERAGED_FROM
        self.chosen = [one.detach().clone() for one in self.weights] if averaged else self.weights
        self.losses: list[Tensor] = []
        self.evaluations: dict[int, float] = {}  # loss of the validation bags, by step

    def train(self, batches: Iterator[LabelledBags], validation: LabelledBags) -> Stopped:
        """Take all steps, or those before a reason to stop. Leaves the network with the weights
        that count, or with those that were best on the validation bags."""
        settings = self.settings
        best: list[Tensor] | None = None
        limit = time.monotonic() + (settings.max_seconds or math.inf)
        worse, every = 0, max(settings.steps // EVALUATIONS, 1)
        stopped: Stopped = "max_iter"
        for step in range(1, settings.steps + 1):
            self.step(step, next(batches))
            if settings.verbose and (step % every == 0 or step == settings.steps):
                loss = float(self.losses[-1])
                print(f"step {step} of {settings.steps}, training loss {loss:.4g}", flush=True)
            if len(validation) and step % every == 0:
                value = self.evaluations[step] = self.evaluate(validation)
                worse = 0 if value <= min(self.evaluations.values()) else worse + 1
                if worse == 0:
                    best = [one.detach().clone() for one in self.chosen]
                if worse >= settings.patience:
                    stopped = "n_iter_no_change"
                    break
            if time.monotonic() >= limit and step < settings.steps:
                stopped = "max_seconds"
                break
        self.fill(best or self.chosen)
        return stopped

    def step(self, step: int, batch: LabelledBags) -> None:
        """One step of AdamW with clipped gradients; none if they are not finite."""
        self.adam.zero_grad()
        with equipool.record(diagnostics=False) as solutions:
            total = self.loss_of(batch)
        # The auxiliary loss by the bags' weights: one of weight 2 counts as two of weight 1.
        weights = batch.weights.mean(1)
        for solution in solutions:
            assert solution.squared_gradient is not None
            total = total + AUX_WEIGHT * (weights * solution.squared_gradient).mean()
        total.backward()
        self.losses.append(total.detach())
        norm = nn.utils.clip_grad_norm_(self.weights, CLIP_NORM)
        if not norm.isfinite():
            warnings.warn(f"the gradient of step {step} is not finite", stacklevel=2)
            return
        self.adam.param_groups[0]["lr"] = self.settings.rate(step - 1)
        self.adam.step()
        if self.chosen is not self.weights:  # the first value counts as much as each of the others
            weight = (1 - DECAY) / -math.expm1(step * math.log(DECAY))
            torch._foreach_lerp_(self.chosen, [one.detach() for one in self.weights], weight)

    @torch.no_grad()
    def evaluate(self, validation: LabelledBags) -> float:
        """The loss on the validation bags, with the weights that count."""
        own = [one.clone() for one in self.weights]
        self.fill(self.chosen)
        self.network.eval()
        total = torch.zeros(())
        for bags in torch.arange(len(validation)).split(self.settings.batch_size):
            batch = validation.take(bags.to(validation.ptr.device), self.settings.max_elements)
            total = total + self.loss_of(batch).cpu() * len(bags)
        self.fill(own)
        self.network.train()
        return float(total / len(validation))

    def loss_of(self, batch: LabelledBags) -> Tensor:
        outputs = self.network(batch.elements, ptr=batch.ptr)
        return (batch.weights * losses(self.loss, outputs, batch.targets)).mean()

    @torch.no_grad()
    def fill(self, values: Sequence[Tensor]) -> None:
        for weight, value in zip(self.weights, values, strict=True):
            weight.copy_(value)


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
