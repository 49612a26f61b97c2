"""The training loop: a run takes steps until it is complete or told to stop."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from equipool.environment import hardware, now, versions
from equipool.training.checkpoint import RunFolder
from equipool.training.config import TrainingConfig, run_config
from equipool.training.devices import Accelerator, isolated, seed_step
from equipool.training.progress import Entry, LogFile, Progress
from equipool.training.record import RECENT, Record, RunState, read_record, summarize
from equipool.training.step import NUMBERS, Runner, TrainStep, evaluation_mode
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
        progress: what to show; None for a line per entry of the log, False for nothing.
        how_to_resume: how to resume, for the message on an early stop; by default the Python call.

    Returns:
        The record, also in `out/record.json` if the run is complete. Check `record.complete`, and
        `record.failed` for a run whose steps or evaluations were not finite.
    """
    how = how_to_resume or f"train(task, config, {str(out)!r}, resume=True)"
    folder, identity = RunFolder(out), run_config(task, config)
    if not isinstance(progress, Progress):
        progress = Progress(quiet=progress is False)
    with ExitStack() as stack:
        accelerator = Accelerator(device, config.precision)
        stack.enter_context(isolated(accelerator.device, config.precision))
        shown = progress if accelerator.leads else Progress(quiet=True)
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
        self.train_step = self._make_step()
        self._restore()  # claims the folder only now, when it is known that it can be trained
        self._saved_step = self.state.step

    def _make_step(self) -> TrainStep:
        accelerator, length = self.accelerator, self.config.chunk
        chunk = self.task.batches(0, length, accelerator.device, accelerator.shard)
        for name, values in chunk.items():
            if values.shape[:1] != (length,):
                found = f"{type(self.task).__name__}.batches gave {name!r} of shape"
                shape = tuple(values.shape)
                raise ValueError(f"{found} {shape}, expected {length} first: one per step")
        batch = {name: values[0] for name, values in chunk.items()}
        return TrainStep(self.task, self.config, accelerator, batch)

    def _restore(self) -> None:
        """Load the newest intact checkpoint, if there is one."""
        folder, leads = self.folder, self.accelerator.leads
        if leads:
            folder.claim(self.identity)
        found = folder.newest(self._message) if leads else None
        step = self.accelerator.from_leader(None if found is None else found.step)
        if step is None:
            return
        found = found or folder.read_step(step)
        self.state = RunState.from_checkpoint(found)
        self.train_step.load(found.tensors, step)

    def start(self) -> None:
        """Open the log and start the clock, unless the run is complete."""
        if self.finished:
            return
        step = self.state.step
        self.progress.begin(self.folder.path.name, step, self.config.steps)
        if self.accelerator.leads:
            self._log = LogFile(self.folder.log, step, self._message)
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
        step = self.state.step
        position = step % self.config.chunk
        if position == 0 or self._runner is None:
            self._runner = self._load(step - position)
        self._seed(step)
        self._runner.run(step)
        self.state.step = step + 1
        self._do_what_is_due()

    def _seed(self, step: int) -> None:
        seed_step(self.task.seed, step, self.accelerator.shard.rank, self.accelerator.device)

    def _load(self, first: int) -> Runner:
        length, accelerator = self.config.chunk, self.accelerator
        chunk = self.task.batches(first, length, accelerator.device, accelerator.shard)
        numbers = [self.train_step.numbers(step) for step in range(first, first + length)]
        chunk = chunk | {NUMBERS: accelerator.send(numbers)}
        if self._runner is None:
            self._seed(self.state.step)
            self._runner = Runner(self.train_step, chunk, accelerator, self.state.step)
            if (reason := self._runner.problem) is not None:
                self._event("not captured", {"reason": reason})
                self._message(f"the step could not be captured and runs eagerly: {reason}")
        self._runner.load(chunk)
        return self._runner

    def _do_what_is_due(self) -> None:
        step, config = self.state.step, self.config
        last, every = step == config.steps, config.checkpoint_every
        if last or step % config.log_every == 0:
            self._write_log()
        better = (last or step % config.evaluate_every == 0) and self._evaluate()
        if last or better or (every is not None and step % every == 0):
            self._save()

    def _write_log(self) -> None:
        state = self.state
        self.accelerator.average_(self.train_step.history.rows)
        columns = self.train_step.history.read(state.logged_step, state.step)
        self._read_clock()
        (step, seconds), self._lap = self._lap, (state.step, state.training_seconds)
        speed = (state.step - step) / max(state.training_seconds - seconds, 1e-9)
        skipped = state.add_steps(columns)
        if skipped:
            self._event("skip", {"count": len(skipped), "steps": skipped[:20]})
            self._message(
                f"skipped {len(skipped)} steps before step {state.step}: their gradients "
                "were not finite or far too large"
            )
        entry = state.times() | summarize(columns, self.train_step.metrics)
        entry["learning_rate"] = self.train_step.numbers(state.step - 1)[0]
        entry |= {"steps_per_second": speed, "skipped": state.skipped, "spikes": state.spikes}
        self._write(entry)
        shown = {"loss": entry["loss"], **entry["metrics"], "steps/s": speed}
        self.progress.report(state.step, shown)

    def _evaluate(self) -> bool:
        """Evaluate; returns whether it is the best so far."""
        self._read_clock()
        metrics = self._metrics()
        self.state.evaluation_seconds += self._read_clock()
        entry = self.state.times() | {"metrics": metrics}
        value = metrics[self.task.monitor]
        better = self.state.add_evaluation(entry, value, self.task.lower_is_better)
        self._event("evaluation", entry | {"best": better})
        self.progress.report(self.state.step, {f"evaluated {self.task.monitor}": value})
        return better

    def _metrics(self) -> dict[str, float]:
        network, average = self.train_step.network, self.train_step.average
        averaged = nullcontext() if average is None else average.applied()
        with evaluation_mode(network), averaged:
            found = self.task.evaluate(network, self.accelerator.device)
        if self.task.monitor not in found:
            gave = f"{type(self.task).__name__}.evaluate gave {sorted(found)}"
            monitor = f"{self.task.monitor!r}, the task's monitor"
            raise ValueError(f"{gave}, expected {monitor}, among them")
        return {name: float(value) for name, value in found.items()}

    def _save(self) -> None:
        """Write a checkpoint. Every process must call this; the one that leads writes."""
        self._read_clock()
        self._saved_step = self.state.step
        self.accelerator.average_(self.train_step.history.rows)
        if self.accelerator.leads:
            tensors = self.train_step.tensors() | {RECENT: self.state.recent_losses}
            if self._log is not None:
                self._log.sync()
            self.folder.save(tensors, self.state.to_json(), self.identity)

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
            self.folder.discard()

    def finish(self) -> Record:
        """The run's record, which is written if the run is complete."""
        file, record = self.folder.record, self.record()
        if self.finished and file.exists():
            record = read_record(file)
        elif self.finished and self.accelerator.leads:
            record.write(file)
            if record.warning is not None:
                self._message(f"WARNING: {record.warning}")
            self._event("finish", {"date": record.date, "warning": record.warning})
        self.accelerator.barrier()  # when one process returns, the others find the record
        return record

    def record(self) -> Record:
        state = self.state
        at_best = [e for e in state.curve if state.best and e["step"] == state.best["step"]]
        return Record(
            task=self.task.name, seed=self.task.seed, config=self.identity, versions=versions(),
            hardware=self._hardware(), date=now(), steps=state.step, complete=self.finished,
            seconds=state.seconds, training_seconds=state.training_seconds,
            num_parameters=sum(p.numel() for p in self.train_step.module.parameters()),
            metrics=dict(state.curve[-1]["metrics"]) if state.curve else {},
            best=at_best[-1] if at_best else None, curve=state.curve, spikes=state.spikes,
            skipped=state.skipped, ran_on=state.ran_on(), warning=self._warning(),
        )  # fmt: skip

    def _warning(self) -> str | None:
        skipped, steps = self.state.skipped, self.state.step
        if 2 * skipped > steps:
            return (
                f"{skipped} of {steps} steps were skipped, more than half: their gradients were "
                "not finite or far too large. The network is hardly trained"
            )
        if self.state.curve and self.state.best is None:
            return f"no evaluation gave a finite {self.task.monitor}"
        return None

    def _hardware(self) -> dict[str, str | int]:
        return hardware(self.accelerator.device) | {"processes": self.accelerator.shard.world}
