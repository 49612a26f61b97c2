"""The loop: runs take their steps in turn until they are done, or are to stop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from equipool.training.config import TrainingConfig
from equipool.training.devices import Place, products_in, tuned_convolutions
from equipool.training.folder import RunFolder
from equipool.training.progress import Progress, progress_for_terminal
from equipool.training.record import Record
from equipool.training.run import Run
from equipool.training.stop import Stop
from equipool.training.stopwatch import EvaluationClock
from equipool.training.task import Task


def drive(runs: Sequence[Run], stop: Stop, how_to_resume: str) -> list[Record]:
    """Let the runs take their steps in turn. The records of all of them, finished or stopped."""
    active = [run for run in runs if not run.finished]
    stopped = False
    while active and not stopped:
        for run in active:
            run.advance()
        if any(run.finished for run in active):
            active = [run for run in active if not run.finished]
        stopped = bool(active) and _stops(active[0], stop)
    for run in active:
        run.stop(stop.reason or "stopped", how_to_resume)
    records = [run.finish() for run in runs]
    if runs[0].place.any(stop.due()):  # also where it came too late: the caller may go on else
        stop.request(stop.reason or "stopped")
    return records


def _stops(run: Run, stop: Stop) -> bool:
    # several processes stop after the same step, or they would wait for each other forever
    if run.place.alone:
        return stop.due()
    return run.at_boundary and run.place.any(stop.due())


@contextmanager
def undisturbed(device: torch.device, precision: str) -> Iterator[None]:
    """What training changes of torch's global state is put back after the block."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), products_in(precision), tuned_convolutions():
        yield


class Plan(NamedTuple):
    """A run that is to be made."""

    task: Task
    config: TrainingConfig
    out: str | Path


def carry_out(
    plans: Sequence[Plan],
    resume: bool,
    device: str | torch.device | None,
    stop: float | Stop | None,
    progress: Progress | None,
    how_to_resume: str,
) -> list[Record]:
    """Make the runs and drive them. See `train` and `train_together`."""
    shown = progress if progress is not None else progress_for_terminal()
    stop = stop if isinstance(stop, Stop) else Stop(stop, shown.say)
    precision = plans[0].config.precision
    place = Place(device, precision)
    if len(plans) > 1 and not place.alone:
        raise ValueError("several runs are trained together in one process, not under torchrun")
    evaluations = EvaluationClock()
    runs: list[Run] = []
    with ExitStack() as stack:
        if progress is None:
            stack.callback(shown.close)
        stack.enter_context(stop.on_signals())
        stack.enter_context(undisturbed(place.device, precision))
        for task, config, out in plans:
            if place.leads:
                stack.enter_context(RunFolder(out).locked())
            stream = place.new_stream() if len(plans) > 1 else None
            run = Run(task, config, out, resume, place, shown, stream, len(plans), evaluations)
            stack.callback(run.journal.close)
            runs.append(run)
        for run in runs:
            run.start_clock()
        return drive(runs, stop, how_to_resume)


def train(
    task: Task,
    config: TrainingConfig,
    out: str | Path,
    resume: bool = False,
    device: str | torch.device | None = None,
    *,
    stop_after: float | None = None,
    progress: Progress | None = None,
    how_to_resume: str | None = None,
) -> Record:
    """Train a task's network, in a directory from which it can be gone on with at any time.

    Ctrl-C, SIGTERM and `stop_after` save and return; killed, it loses the steps since the last
    checkpoint and nothing else. Resumed, it goes on as if it had never stopped: the weights and
    the numbers in its log are the same, to the last bit on a CPU.

    Args:
        task: network, data, loss and evaluation.
        config: how to train it.
        out: the run's directory.
        resume: go on with the run that is there; where there is none, start it.
        device: `"cpu"` or `"cuda"`; None for a GPU where there is one. Under `torchrun` every
            process has its own.
        stop_after: seconds after which to stop, for runs in pieces.
        progress: what is shown; None for a bar in a terminal and lines elsewhere.
        how_to_resume: what to tell whoever stops it; None for the call in Python.

    Returns:
        The record, which is in `out/record.json` as well when the run is complete.
    """
    how = how_to_resume or f"train(task, config, {str(out)!r}, resume=True)"
    plan = Plan(task, config, out)
    return carry_out([plan], resume, device, stop_after, progress, how)[0]
