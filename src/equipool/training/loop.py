"""The training loop: runs take steps in turn until they are complete or told to stop."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from equipool.training.config import TrainingConfig, run_config
from equipool.training.devices import Accelerator, Session, clear_memory_errors, isolated
from equipool.training.folder import Record, RunFolder
from equipool.training.progress import Entry, Progress, Sink, progress_for_terminal
from equipool.training.run import Run
from equipool.training.step import TrainStep
from equipool.training.task import Task

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Whether to stop early, and why: Ctrl-C, SIGTERM, or a limit of `after` seconds from now.
    `message` is called at once when a signal comes; stopping may take a while."""

    def __init__(self, after: float | None, message: Callable[[str], None]) -> None:
        self._message, self._listening = message, False
        self.reason: str | None = None
        self._deadline = None if after is None else time.monotonic() + after

    def request(self, reason: str) -> None:
        self.reason = reason

    def due(self) -> bool:
        if self.reason is None and self._deadline is not None:
            self.reason = "time limit reached" if time.monotonic() >= self._deadline else None
        return self.reason is not None

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Inside the block, Ctrl-C and SIGTERM request a stop; a second one interrupts at once.

        Nested blocks of the same object change nothing.
        """
        if self._listening or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in SIGNALS}

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        def handle(number: int, frame: object) -> None:
            self.request("interrupted" if number == signal.SIGINT else "terminated")
            restore()
            self._message("Stopping after this step. Press again to stop at once without saving.")

        for number in SIGNALS:
            signal.signal(number, handle)
        self._listening = True
        try:
            yield
        finally:
            self._listening = False
            restore()


class Plan(NamedTuple):
    task: Task
    config: TrainingConfig
    out: str | Path


def train(
    task: Task, config: TrainingConfig, out: str | Path, resume: bool = False,
    device: str | torch.device | None = None, *, stop_after: float | Stop | None = None,
    progress: Progress | bool | None = None, how_to_resume: str | None = None,
) -> Record:  # fmt: skip
    """Train a task's network in a directory from which the run can be resumed.

    On Ctrl-C, SIGTERM or `stop_after` the run saves and returns. A killed run loses only the steps
    since its last checkpoint. A resumed run gives the same weights and the same log as one that was
    never interrupted, bit for bit on a CPU.

    A run can be extended: resume it with more `steps`. This needs the constant schedule; the other
    schedules depend on the number of steps, so that the longer run would be a different one.

    Args:
        task: network, data, loss and evaluation.
        config: training settings.
        out: the run's directory.
        resume: resume the run in that directory; start one if there is none.
        device: `"cpu"` or `"cuda"`; None for a GPU if there is one. Under `torchrun` every process
            has its own.
        stop_after: stop after this many seconds.
        progress: what to show; None for a bar in a terminal and lines elsewhere, False for nothing.
        how_to_resume: how to resume, for the message on an early stop; by default the Python call.

    Returns:
        The record, also in `out/record.json` if the run is complete. Check `record.complete`, and
        `record.failed` for a run whose steps or evaluations were not finite.
    """
    how = how_to_resume or f"train(task, config, {str(out)!r}, resume=True)"
    return _train([Plan(task, config, out)], resume, device, stop_after, progress, how)[0]


def train_together(
    runs: Sequence[Plan | tuple[Task, TrainingConfig, str | Path]], resume: bool = False,
    device: str | torch.device | None = None, *, stop_after: float | Stop | None = None,
    progress: Progress | bool | None = None, how_to_resume: str | None = None,
) -> list[Record]:  # fmt: skip
    """Train several runs at once on one device, each with the result that `train` gives (except
    for the rounding of convolutions on a GPU).

    The runs take steps in turn. On a GPU each has its own stream, so that steps too small to fill
    the device overlap. Complete runs are left unchanged.

    Args:
        runs: task, config and directory of each; all must have the same precision.
        resume: resume the runs whose directories hold one; start the others.
        device: as in `train`.
        stop_after: stop all of them after this many seconds; or a `Stop` that several calls share.
            Its `reason` is set even if the runs were complete when it was due.
        progress, how_to_resume: as in `train`.

    Returns:
        The records, in the order of `runs`.
    """
    plans = [Plan(*run) for run in runs]
    if not plans:
        raise ValueError("runs is empty, expected one or more")
    precisions = {plan.config.precision for plan in plans}
    if len(precisions) > 1:
        raise ValueError(f"the runs' precisions are {sorted(precisions)}, expected the same in all")
    folders = [Path(plan.out).resolve() for plan in plans]
    if len(set(folders)) < len(folders):
        raise ValueError("two of the runs have the same directory, expected one for each")
    how = how_to_resume or "train_together(the same runs, resume=True)"
    return _train(plans, resume, device, stop_after, progress, how)


@dataclass(frozen=True)
class Fitted:
    """The result of `fit`.

    `network` is in evaluation mode, with averaged weights if `ema_decay` is set. `history` has one
    number per step `[steps]` by name: `loss`, `aux_loss`, `gradient_norm`, `skipped` and the task's
    metrics. `record` has the evaluations and times.
    """

    network: nn.Module
    history: dict[str, Tensor]
    record: Record


def fit(
    task: Task, config: TrainingConfig, device: str | torch.device | None = None, *,
    patience: int | None = None, stop_after: float | None = None,
    progress: Progress | bool | None = False,
) -> Fitted:  # fmt: skip
    """Train a task's network without files: the same loop as `train`, for short trainings.

    It shows nothing by default, Ctrl-C interrupts it, and the task need not be a dataclass.

    Args:
        task: network, data, loss and evaluation.
        config: training settings; those of checkpoints have no effect.
        device: as in `train`.
        patience: stop after this many evaluations in a row that were not the best so far, and
            return the weights of the best one; None to take all steps and return the last weights.
        stop_after: stop after this many seconds, before all steps are taken.
        progress: as in `train`.
    """
    collected = _StepNumbers()
    fields: dict[str, Any] = asdict(task) if is_dataclass(task) else {}
    identity = {"task": task.name, "fields": fields, "training": asdict(config)}
    with _session([Plan(task, config, "")], device, progress) as session:
        stop = Stop(stop_after, session.progress.message)
        run = Run(task, config, identity, session, sinks=[collected])
        best = None if patience is None else _BestWeights(run.train_step, patience, stop)
        if best is not None:
            run.sinks.append(best)
        _take_steps([run], session, stop)
        record = run.finish()
        if not run.finished:
            collected.steps(run.unlogged_steps())
    step = run.train_step
    if step.average is not None:
        step.average.apply()
    if best is not None:
        best.load()
    return Fitted(step.module.eval(), collected.joined(), record)


class _StepNumbers(Sink):
    def __init__(self) -> None:
        self._columns: list[Mapping[str, Tensor]] = []

    def steps(self, columns: Mapping[str, Tensor]) -> None:
        self._columns.append(columns)

    def joined(self) -> dict[str, Tensor]:
        names = self._columns[0] if self._columns else ()
        return {name: torch.cat([columns[name] for columns in self._columns]) for name in names}


class _BestWeights(Sink):
    """Keeps the weights of the best evaluation, and requests a stop when `patience` evaluations in
    a row were not better."""

    def __init__(self, step: TrainStep, patience: int, stop: Stop) -> None:
        if patience < 1:
            raise ValueError(f"patience is {patience}, expected 1 or more, or None")
        self._step, self._patience, self._stop = step, patience, stop
        self._weights: dict[str, Tensor] = {}
        self._worse = 0

    def write(self, entry: Entry) -> None:
        if entry.get("event") != "evaluation":
            return
        self._worse = 0 if entry["best"] else self._worse + 1
        if entry["best"]:
            average = self._step.average
            with nullcontext() if average is None else average.applied():
                weights = self._step.module.state_dict()
                self._weights = {name: value.clone() for name, value in weights.items()}
        if self._worse >= self._patience:
            self._stop.request(f"no improvement in {self._worse} evaluations")

    def load(self) -> None:
        """Load the best weights, if any evaluation was finite."""
        if self._weights:
            self._step.module.load_state_dict(self._weights)


def _train(
    plans: Sequence[Plan], resume: bool, device: str | torch.device | None,
    stop: float | Stop | None, progress: Progress | bool | None, how_to_resume: str,
) -> list[Record]:  # fmt: skip
    runs: list[Run] = []
    with _session(plans, device, progress) as session, ExitStack() as stack:
        if not isinstance(stop, Stop):
            stop = Stop(stop, session.progress.message)
        stack.enter_context(stop.on_signals())
        try:
            for task, config, out in plans:
                folder, identity = RunFolder(out), run_config(task, config)
                if session.accelerator.leads:
                    stack.enter_context(folder.locked())
                    folder.check(identity, resume)
                runs.append(Run(task, config, identity, session, folder))
                stack.callback(runs[-1].close)
            for run in _take_steps(runs, session, stop):
                run.stop(stop.reason or "stopped", how_to_resume)
        except BaseException:
            for run in runs:
                run.discard()
            raise
        records = [run.finish() for run in runs]
        # set also if it came too late for these runs: the caller may have more
        if session.accelerator.any(stop.due()):
            stop.request(stop.reason or "stopped")
        return records


@contextmanager
def _session(
    plans: Sequence[Plan], device: str | torch.device | None, progress: Progress | bool | None
) -> Iterator[Session]:
    """The device and the display of the runs. What training changes in torch is restored."""
    task, config, _ = plans[0]
    smaller = f"reduce the batch size (now {task.batch_size}) or the chunk (now {config.chunk})"
    with ExitStack() as stack:
        if not isinstance(progress, Progress):
            progress = Progress() if progress is False else progress_for_terminal()
            stack.callback(progress.close)
        accelerator = Accelerator(device, config.precision)
        if len(plans) > 1 and not accelerator.alone:
            raise ValueError("several runs are trained together in one process, not under torchrun")
        stack.enter_context(isolated(accelerator.device, config.precision))
        stack.enter_context(clear_memory_errors(smaller))
        yield Session(accelerator, progress if accelerator.leads else Progress(), len(plans))


def _take_steps(runs: Sequence[Run], session: Session, stop: Stop) -> list[Run]:
    """Let the runs take steps in turn; returns those that were stopped early."""
    for run in runs:
        run.start()
    active = [run for run in runs if not run.finished]
    while active:
        for run in active:
            run.advance()
        active = [run for run in active if not run.finished]
        # several processes must stop after the same step, or they wait for each other forever
        aligned = active and (session.accelerator.alone or active[0].at_boundary)
        if aligned and session.accelerator.any(stop.due()):
            break
    return active
