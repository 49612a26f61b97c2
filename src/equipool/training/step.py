"""One training step, run eagerly or as a CUDA graph, without waiting for the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import equipool
from equipool import EquilibriumAggregation, FixedSteps, RandomSteps
from equipool.cuda import capture_step
from equipool.training.config import TrainingConfig
from equipool.training.devices import Accelerator, mixed
from equipool.training.optimizer import (
    Guard,
    History,
    Optimizer,
    WeightAverage,
    average_weight,
    restore_,
    running_statistics,
)
from equipool.training.task import Batch, Loss, Task

COLUMNS = ("loss", "aux_loss", "gradient_norm", "skipped")
NUMBERS = "training/numbers"  # the engine's own part of a batch

Depths = tuple[int, ...]  # number of steps of each layer that draws it

ANY_RANK = -1  # no process has it: what is drawn is the same in all of them


class TrainStep:
    """Loss, backward, guard, clipping, a row in the history, Adam, average.

    Its state is in tensors that stay where they are, so that it can be captured in a CUDA graph,
    saved and loaded. `batch` may be that of any step: it gives the names of the metrics.
    """

    def __init__(
        self, task: Task, config: TrainingConfig, accelerator: Accelerator, batch: Batch
    ) -> None:
        self.task, self.config = task, config
        self.module = make_network(task)
        for module in self.module.modules():
            if isinstance(module, EquilibriumAggregation):
                module.cuda_graphs = not task.capturable  # else the step is captured as a whole
        network = accelerator.place(self.module).train()
        self.network = network if accelerator.alone else DistributedDataParallel(network)
        # Compiled for steps only: evaluations have other shapes and would compile for each.
        self._trained: Any = torch.compile(self.network) if config.compile else self.network
        self.optimizer = Optimizer(self.module, config, accelerator.device)
        self.average = None if config.ema_decay is None else WeightAverage(self.module)
        self.metrics = self._metric_names(batch)
        self.history = History([*COLUMNS, *self.metrics], config.log_every, accelerator.device)
        self.guard = Guard(config.guard_factor, config.clip_norm, accelerator.device)
        self.depths = DepthDraw(self.module, task.seed)
        self._running = list(running_statistics(self.module).values())
        constants = torch.tensor([0.0, 1.0, torch.nan], device=accelerator.device)
        self._zero, self._one, self._unknown = constants.unbind()

    def _metric_names(self, batch: Batch) -> list[str]:
        with evaluation_mode(self.network):
            loss = self.task.loss(self.network, batch)
        for name, value in {"value": loss.value, **loss.metrics}.items():
            if value.shape:
                shape = tuple(value.shape)
                raise ValueError(f"the loss's {name!r} has shape {shape}, expected a scalar")
            if name in COLUMNS:
                raise ValueError(f"a metric is called {name!r}, a name the engine uses itself")
        return list(loss.metrics)

    def numbers(self, step: int) -> list[float]:
        """The step's numbers from the host: the learning rate, the weight of the auxiliary loss if
        it changes, and the weight of the average."""
        found = [self.config.learning_rate * self.config.learning_rate_factor(step)]
        if self.config.aux_initial is not None:
            found.append(self.config.aux_weight_at(step))
        decay = self.config.ema_decay
        return found if decay is None else [*found, average_weight(decay, step + 1)]

    def __call__(self, batch: Batch) -> None:
        """Take the step on a batch that has the step's `numbers` under `NUMBERS`."""
        numbers = batch[NUMBERS]
        data = {name: value for name, value in batch.items() if name != NUMBERS}
        before = [buffer.clone() for buffer in self._running]
        self.optimizer.zero_grad()
        loss, aux_loss = self._losses(data)
        constant = self.config.aux_initial is None
        self._backward(loss.value, aux_loss, self.config.aux_weight if constant else numbers[1])

        norms = torch.stack(torch._foreach_norm(self.optimizer.gradients()))
        metrics = [loss.metrics[name] for name in self.metrics]
        norm, skipped, divisor = self.guard(norms)
        self.history.write([loss.value, aux_loss, norm, skipped, *metrics])
        self.optimizer.step(numbers[0], skipped, divisor)
        restore_(self._running, before, skipped)
        if self.average is not None:
            self.average.update(numbers[-1])

    def _losses(self, data: Batch) -> tuple[Loss, Tensor]:
        """The task's loss and the layers' auxiliary loss, which is NaN if its weight is zero:
        computing it takes several kernels."""
        if not self.config.aux_weight:
            return self.task.loss(self._trained, data), self._unknown
        with equipool.record(diagnostics=False) as solutions:
            loss = self.task.loss(self._trained, data)
        return loss, solutions.aux_loss if solutions else self._zero

    def _backward(self, loss: Tensor, aux_loss: Tensor, aux_weight: Tensor | float) -> None:
        counts = self.config.aux_weight and aux_loss.requires_grad
        total = loss + aux_weight * aux_loss if counts else loss
        # The factor is 1 + 0 * loss: if the loss of one process is not finite, the gradients of
        # all processes are NaN, and all of them skip the step.
        factor = torch.add(self._one, total.detach(), alpha=0)
        total.backward(factor)

    def tensors(self) -> dict[str, Tensor]:
        """All state, named `model/...`, `optimizer/...` and `average/...`."""
        guard = {f"guard/{name}": value for name, value in self.guard.tensors().items()}
        parts: dict[str, dict[str, Tensor]] = {
            "model": self.module.state_dict(),
            "optimizer": {**self.optimizer.tensors(), **guard, "history": self.history.rows},
            "average": {} if self.average is None else self.average.values,
        }
        return {
            f"{part}/{name}": value for part, own in parts.items() for name, value in own.items()
        }

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor], step: int) -> None:
        """Load the state after `step` steps, in place."""
        self.module.load_state_dict(part_of(tensors, "model"))
        for name, value in self.tensors().items():
            if not name.startswith("model/"):
                value.copy_(tensors[name])
        self.history.counter.fill_(step)


def part_of(tensors: dict[str, Tensor], part: str) -> dict[str, Tensor]:
    """The tensors of the `model`, for instance, by their names in it."""
    return {
        name.removeprefix(f"{part}/"): value
        for name, value in tensors.items()
        if name.startswith(f"{part}/")
    }


def make_network(task: Task) -> nn.Module:
    """The task's network with its initial weights, drawn with the run's seed."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(task.seed)
        return task.network()


class DepthDraw:
    """Draws the number of inner steps for a network, once per training step.

    The draw is a function of seed and step, so that resuming is exact and all processes agree. All
    layers use the same one: a captured step needs a graph per combination, and there are few.
    """

    def __init__(self, network: nn.Module, seed: int) -> None:
        layers = (m for m in network.modules() if isinstance(m, EquilibriumAggregation))
        self._drawn = [(m, m.steps) for m in layers if isinstance(m.steps, RandomSteps)]
        self._seed = seed
        self._sides = math.lcm(*(len(steps.choices) for _, steps in self._drawn))

    def __call__(self, step: int) -> Depths:
        """The depths of a training step."""
        return self._depths(mixed(self._seed, step, ANY_RANK) % self._sides)

    def all(self) -> list[Depths]:
        """All depths that can be drawn, the deepest first."""
        return sorted({self._depths(side) for side in range(self._sides)}, reverse=True)

    def _depths(self, side: int) -> Depths:
        choices = (steps.choices for _, steps in self._drawn)
        return tuple(numbers[side * len(numbers) // self._sides] for numbers in choices)

    @contextmanager
    def set_to(self, depths: Depths) -> Iterator[None]:
        """The layers search this deep inside the block."""
        try:
            for (layer, steps), depth in zip(self._drawn, depths, strict=True):
                layer.steps = FixedSteps(depth, steps.tolerance)
            yield
        finally:
            for layer, steps in self._drawn:
                layer.steps = steps


class Runner:
    """Runs the steps of a chunk of batches, whose tensors have the steps as first dimension.

    If `config.capture` allows it and the device can, the whole step is one CUDA graph, or one for
    each depth if the layers draw theirs. The chunk then has fixed memory, and the graph reads the
    batch at `step % chunk length` from the step counter on the device: a step is one launch without
    copies by the host. If that fails, `problem` is the reason, and steps run eagerly.

    `num_steps` is the number of steps taken before.
    """

    def __init__(
        self, step: TrainStep, chunk: Batch, accelerator: Accelerator, num_steps: int
    ) -> None:
        self.step, self.chunk = step, chunk
        self.problem: str | None = None
        self._graphs: dict[Depths, Callable[[], object]] = {}
        wanted = step.config.capture
        possible = accelerator.device.type == "cuda" and accelerator.alone and step.task.capturable
        if wanted and not possible:
            reason = "only a step of a capturable task on one CUDA device is captured"
            raise ValueError(f"capture is True, expected None or False: {reason}")
        if wanted is False or not possible:
            return
        try:
            self._capture(num_steps)
        except RuntimeError as error:
            if wanted:
                raise
            self._graphs.clear()
            self.problem = str(error)

    def _capture(self, num_steps: int) -> None:
        """The graphs share their memory: they run one after another, and what one leaves for the
        next lies outside."""
        self.chunk = {name: values.clone() for name, values in self.chunk.items()}
        kept = {name: value.clone() for name, value in self.step.tensors().items()}
        pool = torch.cuda.graph_pool_handle()
        try:
            for depths in self.step.depths.all():
                with self.step.depths.set_to(depths):
                    self._graphs[depths] = capture_step(self._captured_step, pool=pool)
        finally:
            self.step.load(kept, num_steps)  # undo the warm-up before the recording, which trains

    def _captured_step(self) -> None:
        length = len(next(iter(self.chunk.values())))
        position = self.step.history.counter % length
        self.step({name: v.index_select(0, position).squeeze(0) for name, v in self.chunk.items()})

    def load(self, chunk: Batch) -> None:
        """Use this chunk for the steps that follow."""
        if not self._graphs:
            self.chunk = chunk
            return
        for name, values in self.chunk.items():
            values.copy_(chunk[name])

    def run(self, number: int) -> None:
        """Take the step of this number, whose batch is in the chunk."""
        depths = self.step.depths(number)
        if self._graphs:
            self._graphs[depths]()
            return
        with self.step.depths.set_to(depths):
            self.step(self.batch(number))

    def batch(self, number: int) -> Batch:
        return {name: values[number % len(values)] for name, values in self.chunk.items()}


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients inside the block; restores the modes of all modules."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
