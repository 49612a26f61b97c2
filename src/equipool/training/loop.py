"""The training loop: a run takes steps until it is complete or told to stop."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equipool.training.checkpoint import RunFolder
from equipool.training.config import TrainingConfig, run_config
from equipool.training.devices import Accelerator, isolated
from equipool.training.progress import Progress, progress_for_terminal
from equipool.training.record import Record
from equipool.training.run import Run
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
        stop_after: stop after this many seconds; or a `Stop` that several calls share. Its `reason`
            is set even if the run was complete when it was due.
        progress: what to show; None for a bar in a terminal and lines elsewhere, False for nothing.
        how_to_resume: how to resume, for the message on an early stop; by default the Python call.

    Returns:
        The record, also in `out/record.json` if the run is complete. Check `record.complete`, and
        `record.failed` for a run whose steps or evaluations were not finite.
    """
    how = how_to_resume or f"train(task, config, {str(out)!r}, resume=True)"
    folder, identity = RunFolder(out), run_config(task, config)
    with _prepared(config, device, progress) as (accelerator, shown), ExitStack() as stack:
        stop = stop_after if isinstance(stop_after, Stop) else Stop(stop_after, shown.message)
        stack.enter_context(stop.on_signals())
        if accelerator.leads:
            stack.enter_context(folder.locked())
            folder.check(identity, resume)
        run = Run(task, config, identity, accelerator, shown, folder)
        with closing(run):
            _take_steps(run, stop)
            if not run.finished:
                run.stop(stop.reason or "stopped", how)
            record = run.finish()
        # set also if it came too late for this run: the caller may have more
        if accelerator.any(stop.due()):
            stop.request(stop.reason or "stopped")
        return record


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
    stop_after: float | None = None,
    progress: Progress | bool | None = False,
) -> Fitted:  # fmt: skip
    """Train a task's network without files: the same loop as `train`, for short trainings.

    It shows nothing by default, Ctrl-C interrupts it, and the task need not be a dataclass.

    Args:
        task: network, data, loss and evaluation.
        config: training settings; those of checkpoints have no effect.
        device: as in `train`.
        stop_after: stop after this many seconds, before all steps are taken.
        progress: as in `train`.
    """
    fields: dict[str, Any] = asdict(task) if is_dataclass(task) else {}
    identity = {"task": task.name, "fields": fields, "training": asdict(config)}
    with _prepared(config, device, progress) as (accelerator, shown):
        run = Run(task, config, identity, accelerator, shown)
        _take_steps(run, Stop(stop_after, shown.message))
        record = run.finish()
        if not run.finished:
            run.rows.append(run.unlogged_steps())
    step = run.train_step
    if step.average is not None:
        step.average.apply()
    history = {name: torch.cat([columns[name] for columns in run.rows]) for name in run.rows[0]}
    return Fitted(step.module.eval(), history, record)


@contextmanager
def _prepared(
    config: TrainingConfig, device: str | torch.device | None, progress: Progress | bool | None
) -> Iterator[tuple[Accelerator, Progress]]:
    """The device and the display of a run. What training changes in torch is restored."""
    with ExitStack() as stack:
        if not isinstance(progress, Progress):
            progress = Progress() if progress is False else progress_for_terminal()
            stack.callback(progress.close)
        accelerator = Accelerator(device, config.precision)
        stack.enter_context(isolated(accelerator.device, config.precision))
        yield accelerator, progress if accelerator.leads else Progress()


def _take_steps(run: Run, stop: Stop) -> None:
    """Let the run take steps until it is complete or told to stop."""
    run.start()
    while not run.finished:
        run.advance()
        # several processes must stop after the same step, or they wait for each other forever
        aligned = run.accelerator.alone or run.at_boundary
        if aligned and run.accelerator.any(stop.due()):
            return
