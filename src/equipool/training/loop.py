"""The training loop: a run takes steps until it is complete or told to stop."""

from __future__ import annotations

import math
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipool.environment import hardware, now, versions
from equipool.training.config import Task, TrainingConfig, run_config
from equipool.training.devices import Accelerator, autocast, check_extras, isolated, seed_step
from equipool.training.folder import Entry, LogFile, Record, RunFolder, read_record
from equipool.training.step import COLUMNS, Runner, TrainStep, evaluation_mode

SIGNALS = (signal.SIGINT, signal.SIGTERM)
WIDTH = 20  # of the bar


class Stop:
    """Whether to stop early, and why: Ctrl-C, SIGTERM, or a limit of `after` seconds from now.
    `message` is called at once when a signal comes; stopping may take a while."""

    def __init__(self, after: float | None, message: Callable[[str], None]) -> None:
        self._message, self._listening = message, False
        self.reason: str | None = None
        self._deadline = math.inf if after is None else time.monotonic() + after

    def request(self, reason: str) -> None:
        self.reason = reason

    def due(self) -> bool:
        if self.reason is None and time.monotonic() >= self._deadline:
            self.reason = "time limit reached"
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


class Progress:
    """Shows a run: in a terminal a bar that moves, elsewhere a line per entry of the log, nothing
    if `quiet`."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet, self._run, self._steps = quiet, "", 0
        self._first, self._began = 0, 0.0
        self._bar = False  # whether it is the terminal's last line

    def begin(self, run: str, step: int, steps: int) -> None:
        """A run of this name starts or resumes at `step` of `steps`."""
        self._run, self._steps = run, steps
        self._first, self._began = step, time.monotonic()
        self.message(f"{run}: from step {step} to {steps}")

    def report(self, step: int, numbers: Mapping[str, float | None]) -> None:
        """The latest numbers of the run."""
        filled = round(WIDTH * step / self._steps)
        bar = "#" * filled + "-" * (WIDTH - filled)
        seconds = (time.monotonic() - self._began) / max(step - self._first, 1)
        left = timedelta(seconds=round(seconds * (self._steps - step)))
        shown = "  ".join(f"{k} -" if v is None else f"{k} {v:.4g}" for k, v in numbers.items())
        text = f"{self._run}: {bar} {step}/{self._steps}, {left} left  {shown}"
        if self._quiet or not sys.stdout.isatty():
            self.message(text)
        else:
            self._bar = True
            text = text[: shutil.get_terminal_size().columns - 1]
            print(f"\r\033[K{text}", end="\n" if step == self._steps else "", flush=True)

    def message(self, text: str) -> None:
        """A message to the user."""
        if not self._quiet:
            print(f"\n{text}" if self._bar else text, flush=True)
            self._bar = False


def train(
    task: Task, config: TrainingConfig, out: str | Path, resume: bool = False,
    device: str | torch.device | None = None, *, stop_after: float | Stop | None = None,
    progress: bool = True, how_to_resume: str | None = None,
) -> Record:  # fmt: skip
    """Train a task's network in a directory from which the run can be resumed.

    On Ctrl-C, SIGTERM or `stop_after` the run saves and returns. A killed run loses only the steps
    since its last checkpoint. A resumed run gives the same weights and the same log as one that was
    never interrupted, bit for bit on a CPU. A loss or a gradient that is not finite is an error;
    no checkpoint holds the weights after such a step.

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
        progress: whether to show the progress.
        how_to_resume: how to resume, for the message on an early stop; by default the Python call.

    Returns:
        The record, also in `out/record.json` if the run is complete. Check `record.complete`, and
        `record.failed` for a run whose evaluations were not finite.
    """
    check_extras()
    how = how_to_resume or f"train(task, config, {str(out)!r}, resume=True)"
    folder, identity = RunFolder(out), run_config(task, config)
    with ExitStack() as stack:
        accelerator = Accelerator(device)
        stack.enter_context(isolated(accelerator.device, config.precision))
        shown = Progress(quiet=not (progress and accelerator.leads))
        stop = stop_after if isinstance(stop_after, Stop) else Stop(stop_after, shown.message)
        stack.enter_context(stop.on_signals())
        if accelerator.leads:
            stack.enter_context(folder.locked())
            folder.check(identity, resume)
        run = stack.enter_context(closing(Run(task, config, identity, accelerator, shown, folder)))
        run.start()
        while not run.finished:
            run.advance()
            # several processes must stop after the same step, or they wait for each other forever
            aligned = accelerator.alone or run.at_boundary
            if aligned and not run.finished and accelerator.any(stop.due()):
                run.stop(stop.reason or "stopped", how)
                break
        record = run.finish()
        # set also if it came too late for this run: the caller may have more
        if accelerator.any(stop.due()):
            stop.request(stop.reason or "stopped")
        return record


@dataclass
class RunState:
    """How far a run is. Checkpoints hold this, and the tensors of the training step."""

    step: int = 0
    seconds: float = 0.0  # over all parts of a resumed run
    evaluation_seconds: float = 0.0
    logged_step: int = 0  # steps before this one are in the log
    best: dict[str, Any] | None = None  # the best entry of the curve
    curve: list[dict[str, Any]] = field(default_factory=list)  # an entry per evaluation
    parts: list[dict[str, Any]] = field(default_factory=list)  # `first_step`, hardware, versions

    @property
    def training_seconds(self) -> float:
        return self.seconds - self.evaluation_seconds

    def times(self) -> dict[str, Any]:
        """Step and seconds, as each entry of the log has them."""
        return {name: getattr(self, name) for name in ("step", "seconds", "training_seconds")}

    def ran_on(self) -> list[dict[str, Any]]:
        """Steps, hardware and versions of each part of a resumed run."""
        ends = [*(part["first_step"] for part in self.parts[1:]), self.step]
        return [
            {"steps": end - part["first_step"]}
            | {name: part[name] for name in ("hardware", "versions")}
            for part, end in zip(self.parts, ends, strict=True)
        ]


class Run:
    """A run that takes one step per call of `advance`.

    `identity` is task and config as JSON, with what the task knows of its data.
    """

    def __init__(
        self, task: Task, config: TrainingConfig, identity: dict[str, Any],
        accelerator: Accelerator, progress: Progress, folder: RunFolder,
    ) -> None:  # fmt: skip
        self.task, self.config, self.identity, self.folder = task, config, identity, folder
        self.accelerator, self.progress = accelerator, progress
        self.state = RunState()
        self._log: LogFile | None = None
        self._runner: Runner | None = None
        self._new = accelerator.leads and not folder.config.exists()
        batch = {name: values[0] for name, values in self._chunk(0).items()}
        self.train_step = TrainStep(task, config, accelerator, batch)
        self._restore()  # claims the folder only now, when it is known that it can be trained
        self._saved_step = self.state.step

    def _chunk(self, first: int) -> dict[str, Tensor]:
        """The batches of the steps from this one on."""
        length, accelerator = self.config.chunk, self.accelerator
        chunk = self.task.batches(first, length, accelerator.device, accelerator.shard)
        for name, values in chunk.items():
            if len(values) != length:
                found = f"{type(self.task).__name__}.batches gave {name!r} of shape"
                shape = tuple(values.shape)
                raise ValueError(f"{found} {shape}, expected {length} first: one per step")
        return chunk

    def _restore(self) -> None:
        """Load the newest intact checkpoint, if there is one."""
        folder, leads = self.folder, self.accelerator.leads
        if leads:
            folder.claim(self.identity)
        found = folder.newest() if leads else None
        step = self.accelerator.from_leader(None if found is None else found.step)
        if step is None:
            return
        found = found or folder.read_step(step)
        self.state = RunState(**found.state)
        self.train_step.load(found.tensors, step)

    def start(self) -> None:
        """Open the log and start the clock, unless the run is complete."""
        if self.finished:
            return
        step = self.state.step
        self.progress.begin(self.folder.path.name, step, self.config.steps)
        if self.accelerator.leads:
            self._log = LogFile(self.folder.log, step)
        about = {"hardware": self._hardware(), "versions": versions()}
        self.state.parts.append({"first_step": step} | about)
        self._event("start" if step == 0 else "resume", {"date": now()} | about)
        self._clock = time.perf_counter()
        self._lap = (step, self.state.training_seconds)

    def _write(self, entry: Entry) -> None:
        if self._log is not None:
            self._log.write(entry)

    def _event(self, event: str, content: Entry) -> None:
        self._write({"event": event, "step": self.state.step} | content)

    def _message(self, text: str) -> None:
        self.progress.message(f"{self.folder.path.name}: {text}")

    def _read_clock(self) -> float:
        """Wait for the device and add the seconds since the last call to the run's."""
        if self.accelerator.device.type == "cuda":
            torch.cuda.synchronize(self.accelerator.device)
        before, self._clock = self._clock, time.perf_counter()
        self.state.seconds += self._clock - before
        return self._clock - before

    @property
    def finished(self) -> bool:
        return self.state.step >= self.config.steps

    @property
    def at_boundary(self) -> bool:
        """Whether all processes get here at the same time."""
        return self.state.step % self.config.chunk == 0

    def advance(self) -> None:
        """Take a step, then log, evaluate and save if that is due."""
        step, config = self.state.step, self.config
        position = step % config.chunk
        if position == 0 or self._runner is None:
            self._runner = self._load(step - position)
        self._seed(step)
        self._runner.run(step)
        step = self.state.step = step + 1
        last, every = step == config.steps, config.checkpoint_every
        if last or step % config.log_every == 0:
            self._write_log()
        better = (last or step % config.evaluate_every == 0) and self._evaluate()
        if last or better or (every is not None and step % every == 0):
            self._save()

    def _seed(self, step: int) -> None:
        seed_step(self.task.seed, step, self.accelerator.shard.rank, self.accelerator.device)

    def _load(self, first: int) -> Runner:
        chunk = self._chunk(first)
        if self._runner is None:
            self._seed(self.state.step)
            self._runner = Runner(self.train_step, chunk, self.accelerator, self.state.step)
            if (reason := self._runner.problem) is not None:
                self._event("not captured", {"reason": reason})
                self._message(f"the step could not be captured and runs eagerly: {reason}")
        self._runner.load(chunk)
        return self._runner

    def _numbers(self) -> Tensor:
        """The rows of the steps since `logged_step`, `[steps, columns]`, on the CPU. An error if a
        loss or a gradient was not finite. Every process must call this."""
        rows = self.train_step.rows
        self.accelerator.average_(rows)
        steps = torch.arange(self.state.logged_step, self.state.step)
        found = rows.cpu()[steps % len(rows)]
        loss, _, norm = found.T[: len(COLUMNS)]
        bad = (~(loss + norm).isfinite()).nonzero().flatten()
        if len(bad):
            at = bad[0]
            raise FloatingPointError(
                f"step {steps[at]}: the loss is {loss[at]:.4g} and the norm of its gradient "
                f"{norm[at]:.4g}, expected finite numbers. Try a smaller learning_rate"
            )
        return found

    def _write_log(self) -> None:
        state, rows = self.state, self._numbers()
        self._read_clock()
        (step, seconds), self._lap = self._lap, (state.step, state.training_seconds)
        speed = (state.step - step) / max(state.training_seconds - seconds, 1e-9)
        state.logged_step = state.step
        means = rows.double().mean(0).tolist()
        metrics = dict(zip(self.train_step.metrics, means[len(COLUMNS) :], strict=True))
        self._write(
            state.times()
            | dict(zip(COLUMNS, means, strict=False))
            | {"loss_max": rows[:, 0].max().item(), "metrics": metrics}
            | {"learning_rate": self.config.learning_rate_at(state.step - 1)}
            | {"steps_per_second": speed}
        )
        self.progress.report(state.step, {"loss": means[0], **metrics, "steps/s": speed})

    def _evaluate(self) -> bool:
        """Evaluate; returns whether it is the best so far."""
        self._read_clock()
        metrics = self._metrics()
        self.state.evaluation_seconds += self._read_clock()
        entry = self.state.times() | {"metrics": metrics}
        value, best = metrics[self.task.monitor], self.state.best
        sign = 1 if self.task.lower_is_better else -1
        better = math.isfinite(value) and (
            best is None or sign * value < sign * best["metrics"][self.task.monitor]
        )
        self.state.curve.append(entry)
        if better:
            self.state.best = entry
        self._event("evaluation", entry | {"best": better})
        self.progress.report(self.state.step, {f"evaluated {self.task.monitor}": value})
        return better

    def _metrics(self) -> dict[str, float]:
        network, device = self.train_step.network, self.accelerator.device
        with evaluation_mode(network), autocast(self.config.precision, device):
            found = self.task.evaluate(network, device)
        if self.task.monitor not in found:
            gave = f"{type(self.task).__name__}.evaluate gave {sorted(found)}"
            raise ValueError(f"{gave}, expected {self.task.monitor!r}, the task's monitor")
        return {name: float(value) for name, value in found.items()}

    def _save(self) -> None:
        """Write a checkpoint. Every process must call this; the one that leads writes."""
        self._numbers()  # which must be finite
        self._read_clock()
        self._saved_step = self.state.step
        if self._log is not None:
            self._log.sync()
            self.folder.save(self.train_step.tensors(), vars(self.state), self.identity)

    def stop(self, reason: str, how_to_resume: str) -> None:
        if self._saved_step != self.state.step:
            self._save()
        self._event("stop", {"reason": reason})
        step, steps = self.state.step, self.config.steps
        self._message(f"{reason} at step {step} of {steps} and saved. To resume: {how_to_resume}")

    def close(self) -> None:
        """Close the log; remove the files of a run that took no step."""
        if self._log is not None:
            self._log.close()
        if self._new and self.state.step == 0:
            for file in (self.folder.config, self.folder.log):
                file.unlink(missing_ok=True)

    def finish(self) -> Record:
        """The run's record, which is written if the run is complete."""
        file, record = self.folder.record, self.record()
        if self.finished and file.exists():
            return read_record(file)
        if self.finished and self.accelerator.leads:
            record.write(file)
            self._event("finish", {"date": record.date})
        return record

    def record(self) -> Record:
        state = self.state
        return Record(
            task=self.task.name, seed=self.task.seed, config=self.identity, versions=versions(),
            hardware=self._hardware(), date=now(), steps=state.step, complete=self.finished,
            seconds=state.seconds, training_seconds=state.training_seconds,
            num_parameters=sum(p.numel() for p in self.train_step.module.parameters()),
            metrics=dict(state.curve[-1]["metrics"]) if state.curve else {},
            best=state.best, curve=state.curve, ran_on=state.ran_on(),
        )  # fmt: skip

    def _hardware(self) -> dict[str, str | int]:
        return hardware(self.accelerator.device) | {"processes": self.accelerator.shard.world}
