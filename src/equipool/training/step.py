"""One optimisation step. Nothing in it waits for the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import equipool
from equipool.training.average import WeightAverage, average_weight
from equipool.training.config import TrainingConfig
from equipool.training.devices import Place
from equipool.training.guard import Guard
from equipool.training.history import History
from equipool.training.optimizer import Optimizer
from equipool.training.running import RunningStatistics
from equipool.training.statistics import evaluation_mode
from equipool.training.task import Batch, Loss, Task
from equipool.training.verdict import Verdict

COLUMNS = ("loss", "aux_loss", "gradient_norm", "skipped")
NUMBERS = "training/numbers"  # the engine's own part of a batch


class Step:
    """Loss, backward, guard, clipping, a row in the history, Adam, average.

    All its state is in tensors that stay where they are, so that it can be captured in a CUDA
    graph, written to a checkpoint and put back.

    Args:
        task: gives network and loss.
        config: how it is trained.
        place: where.
        batch: any batch of one step, from which the names of the metrics are learned.
    """

    def __init__(self, task: Task, config: TrainingConfig, place: Place, batch: Batch) -> None:
        self.task, self.config, self.fabric = task, config, place.fabric
        self.module = make_network(task)
        self.network: nn.Module = place.fabric.setup_module(self.module)
        self.network.train()
        # Steps alone: evaluations have other shapes, and would be compiled for each of them.
        self._stepped: Any = torch.compile(self.network) if config.compile else self.network
        self.optimizer = Optimizer(self.module, config, place.device)
        self.guard = Guard(config.guard_factor, place.device)
        self.average = None if config.ema_decay is None else WeightAverage(self.module)
        self.counter = torch.zeros(1, dtype=torch.int64, device=place.device)
        self.metrics = self._metric_names(batch)
        self.history = History([*COLUMNS, *self.metrics], config.log_every, place.device)
        self.verdict = Verdict(self.guard, self.history, self.counter, config.clip_norm)
        self._schedule = config.learning_rate_schedule()
        self._running = RunningStatistics(self.module)
        constants = torch.tensor([0.0, 1.0, torch.nan], device=place.device)
        self._zero, self._one, self._unknown = constants.unbind()

    def _metric_names(self, batch: Batch) -> list[str]:
        with evaluation_mode(self.network):
            loss = self.task.loss(self.network, batch)
        for name, value in {"value": loss.value, **loss.metrics}.items():
            if value.shape:
                raise ValueError(
                    f"the loss's {name!r} has shape {tuple(value.shape)}, expected a scalar"
                )
        names = list(loss.metrics)
        clash = set(names) & set(COLUMNS)
        if clash:
            raise ValueError(f"a metric is called {clash.pop()!r}, which the engine uses itself")
        return names

    def numbers(self, step: int) -> list[float]:
        """What the step needs of the host: learning rates, the average's weight."""
        rate = self.config.learning_rate * self._schedule(step)
        decay = self.config.ema_decay
        weight = [] if decay is None else [average_weight(decay, step + 1)]
        rates = [rate * factor for factor in self.optimizer.factors]
        return [*rates, *weight]

    def __call__(self, batch: Batch) -> None:
        """Take the step on a batch that has the step's `numbers` under `NUMBERS`."""
        numbers = batch[NUMBERS]
        data = {name: value for name, value in batch.items() if name != NUMBERS}
        before = self._running.copy()
        self.optimizer.zero_grad()
        loss, aux_loss = self._losses(data)
        self._backward(loss.value, aux_loss)

        norms = torch.stack(torch._foreach_norm(self.optimizer.gradients()))
        metrics = [loss.metrics[name] for name in self.metrics]
        skipped, divisor = self.verdict(norms, [loss.value, aux_loss], metrics)
        self.optimizer.step(numbers[: len(self.optimizer.factors)], skipped, divisor)
        self._running.restore(before, skipped)
        if self.average is not None:
            self.average.update(numbers[-1])

    def _losses(self, data: Batch) -> tuple[Loss, Tensor]:
        """The task's loss and the layers' auxiliary loss. That one takes some kernels a step: where
        it has no weight it is not computed, and NaN."""
        if not self.config.aux_weight:
            loss = self.task.loss(self._stepped, data)
            return loss, self._unknown
        with equipool.record(diagnostics=False) as solutions:
            loss = self.task.loss(self._stepped, data)
        return loss, solutions.aux_loss if solutions else self._zero

    def _backward(self, loss: Tensor, aux_loss: Tensor) -> None:
        weight = self.config.aux_weight
        total = loss + weight * aux_loss if weight and aux_loss.requires_grad else loss
        # A loss that is not finite makes every gradient NaN, in all processes: so all skip.
        # The factor is 1 + 0 * loss.
        self.fabric.backward(total, gradient=torch.add(self._one, total.detach(), alpha=0))

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """All state by the file it is kept in, to be written and filled in place."""
        state = {name: _tensor(name, value) for name, value in self.module.state_dict().items()}
        more = {f"guard/{name}": value for name, value in self.guard.tensors().items()}
        files = {
            "model": state,
            "optimizer": {**self.optimizer.tensors(), **more, "history": self.history.rows},
        }
        if self.average is not None:
            files["average"] = self.average.tensors()
        return files

    @torch.no_grad()
    def fill(self, files: dict[str, dict[str, Tensor]], step: int) -> None:
        """Put state back that `tensors` gave, before `step`."""
        for file, own in self.tensors().items():
            for name, value in own.items():
                value.copy_(files[file][name])
        self.counter.fill_(step)


def make_network(task: Task) -> nn.Module:
    """The task's network at its start, drawn with the run's seed."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(task.seed)
        return task.network()


def _tensor(name: str, value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"the network's state {name!r} is a {type(value).__name__}, not a tensor")
    return value
