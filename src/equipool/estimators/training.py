"""The network of an estimator, and its training: how long, on how much at a time, and the steps."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
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


def train_network(
    make_network: Callable[[], nn.Module], seed: int, data: LabelledBags, loss: LossName,
    settings: Settings,
) -> tuple[BagNetwork, dict[str, Array], Stopped]:  # fmt: skip
    """Train one network by AdamW.

    Every epoch visits each bag once, in a new order; a step has `batch_size` bags and at most
    `max_elements` elements of each, drawn anew. A batch of all bags is always in the same order.

    Returns:
        The network, on the CPU; its history, `loss` per step and with held-out bags also
        `validation_loss` and `step`; and the parameter that ended the training.
    """
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    training, every = data, max(settings.steps // EVALUATIONS, 1)
    if settings.held_out:
        training = data.take(order[settings.held_out :], max(int(data.ptr.diff().max()), 1))
    devices = [settings.device] if settings.device.type == "cuda" else []
    losses: list[Tensor] = []
    evaluations: dict[int, float] = {}  # by step
    limit = time.monotonic() + (settings.max_seconds or math.inf)
    worse = 0
    stopped: Stopped = "max_iter"
    with one_thread(), torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        network: Any = make_network().to(settings.device, training.elements.dtype).train()
        adam = torch.optim.AdamW(
            network.parameters(), weight_decay=settings.weight_decay, fused=True
        )  # fmt: skip
        # The network that counts: of a long training, one with the average of the weights.
        chosen = deepcopy(network) if settings.steps >= AVERAGED_FROM else network
        best = None
        batches = _batches(training.to(settings.device), settings, seed)
        validation = data.take(order[: settings.held_out], settings.max_elements)
        validation = validation.to(settings.device)
        for step in range(1, settings.steps + 1):
            adam.param_groups[0]["lr"] = settings.rate(step - 1)
            losses.append(_take_step(network, adam, next(batches), loss))
            if chosen is not network:  # the first weights count as much as each of the others
                share = (1 - DECAY) / -math.expm1(step * math.log(DECAY))
                with torch.no_grad():
                    torch._foreach_lerp_([*chosen.parameters()], [*network.parameters()], share)
            if settings.verbose and (step % every == 0 or step == settings.steps):
                now = f"training loss {float(losses[-1]):.4g}"
                print(f"step {step} of {settings.steps}, {now}", flush=True)
            if len(validation) and step % every == 0:
                evaluations[step] = _evaluate(chosen, validation, loss, settings)
                worse = 0 if evaluations[step] <= min(evaluations.values()) else worse + 1
                best = deepcopy(chosen) if worse == 0 else best
                if worse >= settings.patience:
                    stopped = "n_iter_no_change"
                    break
            if time.monotonic() >= limit and step < settings.steps:
                stopped = "max_seconds"
                break
    history = {"loss": torch.stack(losses).cpu().numpy()}
    if evaluations:
        history["step"] = np.array(list(evaluations))
        history["validation_loss"] = np.array(list(evaluations.values()))
    return (best or chosen).cpu().eval(), history, stopped


def _take_step(
    network: nn.Module, adam: torch.optim.Optimizer, batch: LabelledBags, loss: LossName
) -> Tensor:
    """One step of AdamW with clipped gradients; none if they are not finite."""
    adam.zero_grad()
    with equipool.record(diagnostics=False) as solutions:
        total = _loss_of(network, batch, loss)
    # The auxiliary loss by the bags' weights: one of weight 2 counts as two of weight 1.
    weights = batch.weights.mean(1)
    for solution in solutions:
        assert solution.squared_gradient is not None
        total = total + AUX_WEIGHT * (weights * solution.squared_gradient).mean()
    total.backward()
    if nn.utils.clip_grad_norm_(network.parameters(), CLIP_NORM).isfinite():
        adam.step()
    else:
        warnings.warn("a step is left out: its gradient is not finite", stacklevel=2)
    return total.detach()


@torch.no_grad()
def _evaluate(
    network: nn.Module, validation: LabelledBags, loss: LossName, settings: Settings
) -> float:
    """The loss on the validation bags."""
    network.eval()
    total = torch.zeros(())
    for bags in torch.arange(len(validation)).split(settings.batch_size):
        batch = validation.take(bags.to(validation.ptr.device), settings.max_elements)
        total = total + _loss_of(network, batch, loss).cpu() * len(bags)
    network.train()
    return float(total / len(validation))


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


def _loss_of(network: nn.Module, batch: LabelledBags, name: LossName) -> Tensor:
    outputs = network(batch.elements, ptr=batch.ptr)
    if name == "classes":
        classes = batch.targets.squeeze(-1).long()
        values = functional.cross_entropy(outputs, classes, reduction="none").unsqueeze(-1)
    elif name == "binary":
        values = functional.binary_cross_entropy_with_logits(
            outputs, batch.targets, reduction="none"
        )
    else:
        values = (outputs - batch.targets).square()
    return (batch.weights * values).mean()


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
