"""A run: its steps, and what happens between them."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from equipool.environment import hardware, now, versions
from equipool.training.checkpoint import RunFolder
from equipool.training.config import TrainingConfig
from equipool.training.devices import Accelerator, seed_step
from equipool.training.progress import Entry, LogFile, Progress
from equipool.training.record import RECENT, Record, RunState, read_record, summarize
from equipool.training.step import (
    NUMBERS,
    Runner,
    TrainStep,
    evaluation_mode,
    inner_statistics,
    make_runner,
)
from equipool.training.task import Batch, Task


class Run:
    """A run that takes one step per call of `advance`. Without a folder it has no files, and keeps
    the numbers of all steps in `rows`, as `History.read` gives them.

    `identity` is task and config as JSON, with what the task knows of its data.
    """

    def __init__(
        self, task: Task, config: TrainingConfig, identity: dict[str, Any],
        accelerator: Accelerator, progress: Progress, folder: RunFolder | None = None,
    ) -> None:  # fmt: skip
        self.task, self.config, self.identity, self.folder = task, config, identity, folder
        self.accelerator, self.progress = accelerator, progress
        self.name = task.name if folder is None else folder.path.name
        self.state, self.rows = RunState(), list[dict[str, Tensor]]()
        self._log: LogFile | None = None
        self._runner: Runner | None = None
        self._new = accelerator.leads and folder is not None and not folder.config.exists()
        self.train_step = self._make_step()
        if folder is not None:  # claimed only now, when it is known that it can be trained
            self._restore(folder)
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

    def _restore(self, folder: RunFolder) -> None:
        """Load the newest intact checkpoint, if there is one."""
        leads = self.accelerator.leads
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
        self.progress.begin(self.name, step, self.config.steps)
        if self.folder is not None and self.accelerator.leads:
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
        self.progress.message(f"{self.name}: {text}")

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
        runner = self._runner
        if position == 0 or runner is None:
            runner = self._load(step - position)
        self._seed(step)
        runner.run(step)
        self.state.step = step + 1
        self._do_what_is_due(runner)

    def _seed(self, step: int) -> None:
        seed_step(self.task.seed, step, self.accelerator.shard.rank, self.accelerator.device)

    def _load(self, first: int) -> Runner:
        length, accelerator = self.config.chunk, self.accelerator
        chunk = self.task.batches(first, length, accelerator.device, accelerator.shard)
        numbers = [self.train_step.numbers(step) for step in range(first, first + length)]
        chunk = chunk | {NUMBERS: accelerator.send(numbers)}
        if self._runner is None:
            step = self.state.step
            self._seed(step)
            self._runner = make_runner(
                self.train_step, chunk, accelerator, step, self._not_captured
            )
        self._runner.load(chunk)
        return self._runner

    def _not_captured(self, reason: str) -> None:
        self._event("not captured", {"reason": reason})
        self._message(f"the step could not be captured and runs eagerly: {reason}")

    def _do_what_is_due(self, runner: Runner) -> None:
        step, config = self.state.step, self.config
        last, every = step == config.steps, config.checkpoint_every
        if last or self.at_boundary:
            self.progress.advance(step)
        if last or step % config.log_every == 0:
            self._write_log(runner.batch(step - 1))
        better = (last or step % config.evaluate_every == 0) and self._evaluate()
        if last or better or (every is not None and step % every == 0):
            self._save()

    def _write_log(self, batch: Batch) -> None:
        state = self.state
        columns = self.unlogged_steps()
        if self.folder is None:
            self.rows.append(columns)
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
        network = self.train_step.network
        data = {name: value for name, value in batch.items() if name != NUMBERS}
        inner = inner_statistics(self.train_step.module, lambda: self.task.loss(network, data))
        self._write(entry | ({"inner": inner} if inner else {}))
        self.progress.report({"loss": entry["loss"], **entry["metrics"], "steps/s": speed})

    def unlogged_steps(self) -> dict[str, Tensor]:
        """The numbers of each step since the last entry of the log. Waits for the device, and for
        the other processes."""
        self.accelerator.average_(self.train_step.history.rows)
        return self.train_step.history.read(self.state.logged_step, self.state.step)

    def _evaluate(self) -> bool:
        """Evaluate; returns whether it is the best so far."""
        self._read_clock()
        metrics = self._metrics()
        self.state.evaluation_seconds += self._read_clock()
        entry = self.state.times() | {"metrics": metrics}
        value = metrics[self.task.monitor]
        better = self.state.add_evaluation(entry, value, self.task.lower_is_better)
        self._event("evaluation", entry | {"best": better})
        self.progress.report({f"evaluated {self.task.monitor}": value})
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
        if self.folder is not None and self.accelerator.leads:
            tensors = self.train_step.tensors() | {RECENT: self.state.recent_losses}
            if self._log is not None:
                self._log.sync()
            state = self.state.to_json()
            self.folder.save(tensors, state, self.identity, self.config.keep_last)

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
        if self.folder is not None and self._new and self.state.step == 0:
            self.folder.discard()

    def finish(self) -> Record:
        """The run's record, which is written if the run is complete."""
        file = None if self.folder is None else self.folder.record
        record = self.record()
        if self.finished and file is not None:
            if file.exists():
                record = read_record(file)
            elif self.accelerator.leads:
                record.write(file)
                content = {"date": record.date}
                if record.warning is not None:
                    content["warning"] = record.warning
                    self._message(f"WARNING: {record.warning}")
                self._event("finish", content)
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
