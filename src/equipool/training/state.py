"""The numbers of a run: each step's, each layer's, how far it is, and how long it took."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import equipool
from equipool import EquilibriumAggregation, Solution
from equipool.training.checkpoint import Best, Checkpoint
from equipool.training.devices import Accelerator
from equipool.training.progress import Progress

SPIKE = 10.0  # a loss this many times the running median is a spike
WINDOW = 1000  # finite losses that the median is taken over
FEWEST = 100  # finite losses before the first possible spike

RECENT = "spikes/recent"  # the tensor of recent losses in a checkpoint


def count_spikes(losses: Tensor) -> Tensor:
    """The number of spikes in a training, the only definition in this package.

    A loss is a spike if it is finite and more than 10 times the median of the last 1,000 finite
    losses before it. The first 100 finite losses are never spikes.

    Args:
        losses: one per step `[steps]`, or of several trainings `[steps, S]`.

    Returns:
        A count, or `[S]` of them, int64.

    Example:
        >>> losses = torch.ones(300)
        >>> losses[50], losses[200], losses[250] = 99.0, 99.0, torch.inf
        >>> int(count_spikes(losses))
        1
    """
    if losses.dim() == 1:
        return torch.tensor(_count_spikes(losses, losses.new_zeros(0)))
    return torch.stack([count_spikes(column) for column in losses.unbind(1)])


def _count_spikes(losses: Tensor, before: Tensor) -> int:
    """The spikes among losses `[n]`, given the finite ones `before` them."""
    known, count = torch.cat([before, losses[torch.isfinite(losses)]]), 0
    for start in range(max(len(before), FEWEST), len(known), WINDOW):
        block = known[start : start + WINDOW]
        around = known[max(start - WINDOW, 0) : start + WINDOW]
        # Windows are subsets of `around`, so no median is below this; most losses need no more.
        floor = around.kthvalue((min(start, WINDOW) + 1) // 2).values
        for at in (block > SPIKE * floor).nonzero().flatten().tolist():
            window = known[max(start + at - WINDOW, 0) : start + at]
            count += bool(block[at] > SPIKE * window.median())
    return count


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


@dataclass
class RunState:
    """How far a run is. Checkpoints hold this, and the tensors of the training step."""

    step: int = 0
    seconds: float = 0.0  # over all parts of a resumed run
    evaluation_seconds: float = 0.0
    skipped: int = 0
    spikes: int = 0
    logged_step: int = 0  # steps before this one are in the log
    best: Best | None = None
    curve: list[dict[str, Any]] = field(default_factory=list)  # an entry per evaluation
    pieces: list[dict[str, Any]] = field(default_factory=list)  # first step and hardware per part
    recent_losses: Tensor = field(default_factory=lambda: torch.zeros(0))

    @classmethod
    def from_checkpoint(cls, found: Checkpoint, log_every: int) -> RunState:
        """The state in a checkpoint; also in one that is older than `logged_step`."""
        step, best = found.step, found.state["best"]
        content = {"logged_step": step - step % log_every} | found.state
        content["best"] = None if best is None else Best(**best)
        return cls(**content, recent_losses=found.tensors["optimizer"][RECENT])

    def to_json(self) -> dict[str, Any]:
        """All but the tensor."""
        content = asdict(self)
        del content["recent_losses"]
        return content

    @property
    def training_seconds(self) -> float:
        """Seconds without evaluations."""
        return self.seconds - self.evaluation_seconds

    def times(self) -> dict[str, Any]:
        """Step and seconds, as each entry of the log has them."""
        names = ("step", "seconds", "training_seconds")
        return {name: getattr(self, name) for name in names}

    def add_steps(self, columns: dict[str, Tensor]) -> list[int]:
        """Count the spikes and skipped steps since `logged_step`; returns the skipped steps."""
        losses = columns["loss"]
        self.spikes += _count_spikes(losses, self.recent_losses)
        finite = losses[torch.isfinite(losses)]
        self.recent_losses = torch.cat([self.recent_losses, finite])[-WINDOW:]
        rows = columns["skipped"].nonzero().flatten().tolist()
        skipped = [self.logged_step + row for row in rows]
        self.skipped += len(skipped)
        self.logged_step = self.step
        return skipped

    def add_evaluation(self, entry: dict[str, Any], value: float, lower_is_better: bool) -> bool:
        """Add an evaluation to the curve; returns whether its `value` is the best so far."""
        self.curve.append(entry)
        sign = 1 if lower_is_better else -1
        beaten = self.best is None or sign * value < sign * self.best.value
        better = beaten and math.isfinite(value)
        if better:
            self.best = Best(self.step, value)
        return better

    def parts(self) -> list[dict[str, Any]]:
        """Steps, hardware and versions of each part of a resumed run."""
        ends = [*(piece["first_step"] for piece in self.pieces[1:]), self.step]
        return [
            {"steps": end - piece["first_step"]}
            | {name: piece[name] for name in ("hardware", "together", "versions")}
            for piece, end in zip(self.pieces, ends, strict=True)
        ]


def summarize(columns: dict[str, Tensor], metrics: Sequence[str]) -> dict[str, Any]:
    """A point of the log: means over the steps that were taken, and the largest loss of all.
    `columns` has one number per step `[n]`, by name; `metrics` are the task's among the names."""
    taken = columns["skipped"] == 0
    means = {
        name: float(values[taken].double().mean()) if taken.any() else None
        for name, values in columns.items()
        if name != "skipped"
    }
    of_task = {name: means.pop(name) for name in metrics}
    return {**means, "loss_max": float(columns["loss"].max()), "metrics": of_task}


@dataclass
class Session:
    """What runs that are trained together share."""

    accelerator: Accelerator
    progress: Progress
    num_runs: int = 1
    evaluation_seconds: float = 0.0  # of all of them


class Clock:
    """Measures `state.seconds` and `state.evaluation_seconds`, from `start` on.

    While one of several runs is evaluated, none of them trains: the time counts as evaluation for
    all of them. The device is waited for first.
    """

    def __init__(self, state: RunState, session: Session) -> None:
        self.state, self.session = state, session
        self.start()

    def start(self) -> None:
        """Count from now on."""
        self._last = self._saved = time.perf_counter()
        self._evaluated = self.session.evaluation_seconds
        self._lap = (self.state.step, self.state.training_seconds)

    def read(self) -> None:
        """Wait for the device and take the time."""
        device = self.session.accelerator.device
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        now = time.perf_counter()
        self.state.seconds += now - self._last
        self.state.evaluation_seconds += self.session.evaluation_seconds - self._evaluated
        self._last, self._evaluated = now, self.session.evaluation_seconds

    def lap(self) -> float:
        """Steps per second of training since the last lap."""
        self.read()
        step, seconds = self._lap
        self._lap = (self.state.step, self.state.training_seconds)
        return (self._lap[0] - step) / max(self._lap[1] - seconds, 1e-9)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Time inside the block counts as evaluation."""
        self.read()
        before = self.state.seconds
        yield
        self.read()
        seconds = self.state.seconds - before
        self.session.evaluation_seconds += seconds
        self.state.evaluation_seconds += seconds
        self._evaluated = self.session.evaluation_seconds

    def saved(self) -> None:
        """A checkpoint was written now."""
        self._saved = time.perf_counter()

    def since_saved(self) -> float:
        return time.perf_counter() - self._saved


Statistics = dict[str, dict[str, float]]


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


def inner_statistics(network: nn.Module, forward: Callable[[], object]) -> Statistics:
    """Statistics of every equilibrium layer that runs in `forward`, by its name in the network;
    `"layer"` if the network is one itself.

    `residual` is the largest component of the final gradient, averaged over the sets of the batch,
    `residual_max` its maximum, `converged` the fraction of sets whose residual is within the
    layer's tolerance; `aux_loss` is Eq. 5; `learning_rate`, `momentum` and `regularizer_weight` are
    the learned scalars, if the layer has them. Empty sets, which fill up a batch, do not count.

    Example:
        >>> layer = equipool.EquilibriumAggregation(3, 8)
        >>> statistics = inner_statistics(layer, lambda: layer(torch.ones(5, 3)))
        >>> round(statistics["layer"]["momentum"], 3)
        0.9
    """
    layers = {
        name or "layer": module
        for name, module in network.named_modules()
        if isinstance(module, EquilibriumAggregation)
    }
    if not layers:
        return {}
    solved: dict[str, list[Solution]] = defaultdict(list)
    with ExitStack() as stack:
        stack.enter_context(evaluation_mode(network))
        solutions = stack.enter_context(equipool.record(diagnostics=True))
        for name, layer in layers.items():
            handle = layer.register_forward_hook(
                lambda *_, name=name: solved[name].append(solutions[-1])
            )
            stack.callback(handle.remove)
        forward()
        return {name: _of_layer(layer, solved[name]) for name, layer in layers.items()}


def _of_layer(layer: EquilibriumAggregation, solutions: list[Solution]) -> dict[str, float]:
    scalars: dict[str, object] = {
        "learning_rate": getattr(layer.solver, "learning_rate", None),
        "momentum": getattr(layer.solver, "momentum", None),
        "regularizer_weight": getattr(layer.regularizer, "weight", None),
    }
    found = {name: float(v) for name, v in scalars.items() if isinstance(v, Tensor)}
    some = [solution for solution in solutions if solution.occupied.any()]
    if some:
        residuals, converged = [], []
        for one in some:
            assert one.residual is not None  # diagnostics are on
            assert one.converged is not None
            residuals.append(one.residual[one.occupied])
            converged.append(one.converged[one.occupied])
        residual = torch.cat(residuals)
        found["residual"], found["residual_max"] = float(residual.mean()), float(residual.max())
        found["converged"] = float(torch.cat(converged).float().mean())
        found["aux_loss"] = float(torch.stack([one.aux_loss for one in some]).mean())
    return found
