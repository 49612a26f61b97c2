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
from equipool.training.config import Batch, Loss, Task, TrainingConfig, seed_of
from equipool.training.devices import Accelerator, autocast

COLUMNS = ("loss", "aux_loss", "gradient_norm")  # of the rows; the task's metrics follow

Depths = tuple[int, ...]  # number of steps of each layer that draws it


class TrainStep:
    """Loss, backward, clipping, a row of numbers, AdamW.

    Its state is in tensors that stay where they are, so that it can be captured in a CUDA graph,
    saved and loaded. `batch` may be that of any step: it gives the names of the metrics.

    `rows [log_every, columns]`, float32, has the numbers of recent steps, kept on the device until
    the host reads them: step s has row `s % log_every`. `counter [1]` is the number of steps taken.
    """

    def __init__(
        self, task: Task, config: TrainingConfig, accelerator: Accelerator, batch: Batch
    ) -> None:
        self.task, self.config, self.device = task, config, accelerator.device
        self.module = make_network(task).to(self.device).train()
        for module in self.module.modules():
            if isinstance(module, EquilibriumAggregation):
                module.cuda_graphs = not task.capturable  # else the step is captured as a whole
        alone = accelerator.alone
        self.network = self.module if alone else DistributedDataParallel(self.module)
        # Compiled for steps only: evaluations have other shapes and would compile for each.
        self._trained: Any = torch.compile(self.network) if config.compile else self.network
        self.parameters = {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        self.rate = torch.zeros((), device=self.device)
        self.aux_weight = torch.zeros((), device=self.device)
        self.adam = torch.optim.AdamW(
            self.parameters.values(), self.rate, weight_decay=config.weight_decay, fused=True,
            capturable=self.device.type == "cuda",
        )  # fmt: skip
        # torch creates the state in the first step; a checkpoint must be loaded before that
        for parameter in self.parameters.values():
            self.adam.state[parameter] = {
                "step": torch.zeros((), device=self.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        with evaluation_mode(self.network), autocast(config.precision, self.device):
            self.metrics = list(task.loss(self.network, batch).metrics)
        columns = len(COLUMNS) + len(self.metrics)
        self.rows = torch.zeros(config.log_every, columns, device=self.device)
        self.counter = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.depths = DepthDraw(self.module, task.seed)

    def __call__(self, batch: Batch) -> None:
        """Take a step with the learning rate and the auxiliary weight that were set."""
        self.adam.zero_grad()
        with autocast(self.config.precision, self.device):
            loss, aux_loss = self._losses(batch)
        counts = self.config.aux_weight and aux_loss.requires_grad
        (loss.value + self.aux_weight * aux_loss if counts else loss.value).backward()
        longest = math.inf if self.config.clip_norm is None else self.config.clip_norm
        norm = nn.utils.clip_grad_norm_(self.parameters.values(), longest)
        metrics = (loss.metrics[name] for name in self.metrics)
        row = torch.stack([one.detach().float() for one in (loss.value, aux_loss, norm, *metrics)])
        self.rows.index_copy_(0, self.counter % len(self.rows), row[None])
        self.counter += 1
        self.adam.step()

    def _losses(self, batch: Batch) -> tuple[Loss, Tensor]:
        """The task's loss and the layers' auxiliary loss, which is NaN if its weight is zero:
        computing it takes several kernels."""
        if not self.config.aux_weight:
            return self.task.loss(self._trained, batch), torch.full_like(self.rate, torch.nan)
        with equipool.record(diagnostics=False) as solutions:
            loss = self.task.loss(self._trained, batch)
        return loss, solutions.aux_loss if solutions else torch.zeros_like(self.rate)

    def set_rates(self, step: int) -> None:
        """Set the learning rate and the auxiliary weight of a step."""
        self.rate.fill_(self.config.learning_rate_at(step))
        self.aux_weight.fill_(self.config.aux_weight_at(step))

    def tensors(self) -> dict[str, Tensor]:
        """All state, named `model/...` and `optimizer/...`."""
        model = {f"model/{name}": value for name, value in self.module.state_dict().items()}
        optimizer = {
            f"optimizer/{key}/{name}": value
            for name, parameter in self.parameters.items()
            for key, value in self.adam.state[parameter].items()
        }
        return model | optimizer | {"rows": self.rows}

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor], step: int) -> None:
        """Load the state after `step` steps, in place."""
        self.module.load_state_dict(weights_of(tensors))
        for name, value in self.tensors().items():
            if not name.startswith("model/"):
                value.copy_(tensors[name])
        self.counter.fill_(step)


def weights_of(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state of the network among the tensors of a step."""
    names = (name for name in tensors if name.startswith("model/"))
    return {name.removeprefix("model/"): tensors[name] for name in names}


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
        return self._depths(seed_of("depth", self._seed, step) % self._sides)

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
    batch at `step % chunk length` from the step counter on the device, without copies by the host.
    If that fails, `problem` is the reason, and steps run eagerly.

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
        position = self.step.counter % length
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
        self.step.set_rates(number)
        depths = self.step.depths(number)
        if self._graphs:
            self._graphs[depths]()
            return
        with self.step.depths.set_to(depths):
            self.step({name: v[number % len(v)] for name, v in self.chunk.items()})


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
