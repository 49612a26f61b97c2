"""A run: its steps, and what is due after each of them."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from equipool.environment import hardware, now, versions
from equipool.training.checkpoint import Best
from equipool.training.config import TrainingConfig, run_config
from equipool.training.devices import Place
from equipool.training.folder import RunFolder
from equipool.training.history import Spikes
from equipool.training.journal import FullJournal, Journal, SilentJournal
from equipool.training.keeping import Keeper
from equipool.training.point import point_of, skipped_steps
from equipool.training.progress import Progress
from equipool.training.randomness import StepRandomness
from equipool.training.record import Record, read_record
from equipool.training.statistics import Statistics, evaluation_mode, inner_statistics
from equipool.training.step import NUMBERS, Step
from equipool.training.stepping import Stepping, make_stepping
from equipool.training.stopwatch import EvaluationClock, Stopwatch
from equipool.training.task import Batch, Task


class Run:
    """A run that takes its steps one by one, when it is told to.

    Args:
        task: what is trained.
        config: how.
        out: the run's directory.
        resume: whether a run that is there is gone on with; where there is none, one is started.
        place: where it is computed.
        progress: hears how it goes.
        stream: the CUDA stream of its own, if it has one.
        together: how many runs share the device.
        evaluations: the clock of their evaluations, shared by those runs.
    """

    def __init__(
        self,
        task: Task,
        config: TrainingConfig,
        out: str | Path,
        resume: bool,
        place: Place,
        progress: Progress,
        stream: torch.cuda.Stream | None = None,
        together: int = 1,
        evaluations: EvaluationClock | None = None,
    ) -> None:
        self.task, self.config, self.place, self.together = task, config, place, together
        self.identity = run_config(task, config)
        self.folder = RunFolder(out)
        if place.leads:
            self.folder.check(self.identity, resume)
        self.journal: Journal = (
            FullJournal(self.folder, config.steps, task.monitor, progress)
            if place.leads
            else SilentJournal()
        )
        self._stream = stream
        self._randomness = StepRandomness(task.seed, place.shard.rank, place.device)
        self._spikes = Spikes()
        self._stepping: Stepping | None = None
        with self.on_stream():
            self._step = self._make_step()
            if place.leads:
                self.folder.claim(self.identity)  # now that it is known that it can be trained
            self._keeper = Keeper(
                self.folder.path, config.keep_last, place, self._step, self.journal
            )
            self.counts = self._keeper.restore(self._spikes)
        place.synchronize()  # tasks may share what they keep on the device, streams do not wait
        self._watch = Stopwatch(self.counts, place.device, evaluations or EvaluationClock())
        self._next_due = self._after(self.counts.step)
        if not self.finished:
            self._open(new=self.counts.step == 0)

    def _make_step(self) -> Step:
        chunk = self.task.batches(0, self.config.chunk, self.place.device, self.place.shard)
        for name, values in chunk.items():
            if values.shape[:1] != (self.config.chunk,):
                raise ValueError(
                    f"{type(self.task).__name__}.batches gave {name!r} of shape "
                    f"{tuple(values.shape)}, expected {self.config.chunk} first: one of each step"
                )
        return Step(self.task, self.config, self.place, {name: v[0] for name, v in chunk.items()})

    def _open(self, new: bool) -> None:
        self.journal.open(self.counts.step)
        about = {
            "hardware": self._hardware(),
            "together": self.together,
            "versions": versions(),
        }
        self.counts.pieces.append({"first_step": self.counts.step} | about)
        event = "start" if new else "resume"
        self.journal.event(event, self.counts.step, {"date": now()} | about)
        warmup, steps = self.config.warmup_steps, self.config.steps
        if warmup > steps:
            self.journal.say(
                f"WARNING: warmup_steps is {warmup} and steps is {steps}: the learning rate does "
                f"not get beyond {steps / warmup:.0%} of {self.config.learning_rate:g}"
            )

    def start_clock(self) -> None:
        """The run's seconds are counted from now on."""
        self._watch.start()

    def on_stream(self) -> AbstractContextManager[Any]:
        """Work inside the block goes to the run's own stream."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    @property
    def finished(self) -> bool:
        return self.counts.step >= self.config.steps

    @property
    def at_boundary(self) -> bool:
        """Whether all processes are sure to be here at the same time."""
        return self.counts.step % self.config.chunk == 0

    def advance(self) -> None:
        """Take a step, and do what is due after it."""
        with self.on_stream():
            step = self.counts.step
            position = step % self.config.chunk
            stepping = self._stepping
            if position == 0 or stepping is None:
                stepping = self._load(step - position)
            self._randomness(step)
            stepping.take(position)
            self.counts.step = step + 1
            if step + 1 == self._next_due:
                self._do_what_is_due(stepping)
                self._next_due = self._after(step + 1)

    def _load(self, first: int) -> Stepping:
        length, device = self.config.chunk, self.place.device
        chunk = self.task.batches(first, length, device, self.place.shard)
        numbers = [self._step.numbers(step) for step in range(first, first + length)]
        chunk = chunk | {NUMBERS: self.place.send(numbers)}
        if self._stepping is None:
            self._randomness(self.counts.step)  # a graph is recorded with the run's generator
            self._stepping = make_stepping(
                self._step, chunk, self.config.capture, self.place, self.counts.step, self.journal
            )
        self._stepping.load(chunk)
        return self._stepping

    def _after(self, step: int) -> int:
        """The next step after which something may be due."""
        config = self.config
        intervals = (config.chunk, config.log_every, config.evaluate_every, config.checkpoint_every)
        return min(config.steps, *(step - step % n + n for n in intervals if n is not None))

    def _do_what_is_due(self, stepping: Stepping) -> None:
        step, config = self.counts.step, self.config
        last = step == config.steps
        self.journal.reached(step)
        if last or step % config.log_every == 0:
            self._write_point(stepping.batch((step - 1) % config.chunk))
        better = (last or step % config.evaluate_every == 0) and self._evaluate()
        regular = config.checkpoint_every is not None and step % config.checkpoint_every == 0
        if last or better or regular or self._checkpoint_is_overdue():
            self.save()

    def _checkpoint_is_overdue(self) -> bool:
        limit = self.config.checkpoint_seconds
        if limit is None or not self.at_boundary:
            return False
        return self.place.any(self._watch.since_saved() >= limit)

    def _write_point(self, batch: Batch) -> None:
        counts, history = self.counts, self._step.history
        self.place.average_(history.rows)
        columns = history.read(counts.step)
        speed = self._watch.lap()
        self._spikes.take(columns["loss"])
        counts.spikes = self._spikes.count
        self._note(skipped_steps(columns, counts.step))
        entry = self._times() | point_of(columns, self._step.metrics)
        entry |= {
            "learning_rate": self._step.numbers(counts.step - 1)[0],
            "steps_per_second": speed,
            "skipped": counts.skipped,
            "spikes": counts.spikes,
        }
        inner = self._inner_statistics(batch)
        self.journal.point(entry | ({"inner": inner} if inner else {}))

    def _note(self, skipped: list[int]) -> None:
        if skipped:
            self.counts.skipped += len(skipped)
            content = {"count": len(skipped), "steps": skipped[:20]}
            self.journal.event("skip", self.counts.step, content)
            self.journal.say(
                f"{len(skipped)} steps before step {self.counts.step} were skipped: their "
                "gradients were not finite, or far too long"
            )

    def _inner_statistics(self, batch: Batch) -> Statistics:
        data = {name: value for name, value in batch.items() if name != NUMBERS}
        network = self._step.network
        return inner_statistics(self._step.module, lambda: self.task.loss(network, data))

    def _times(self) -> dict[str, Any]:
        return {
            "step": self.counts.step,
            "seconds": self.counts.seconds,
            "training_seconds": self._watch.training_seconds,
        }

    def _evaluate(self) -> bool:
        """Evaluate; whether it is the best so far."""
        with self._watch.evaluating():
            metrics = self._metrics()
        entry = self._times() | {"metrics": metrics}
        self.counts.curve.append(entry)
        value = metrics[self.task.monitor]
        better = self._is_better(value)
        if better:
            self.counts.best = Best(self.counts.step, value)
        self.journal.evaluation(entry, better)
        return better

    def _metrics(self) -> dict[str, float]:
        average, network = self._step.average, self._step.network
        averaged = nullcontext() if average is None else average.applied()
        with evaluation_mode(network), averaged:
            found = self.task.evaluate(network, self.place.device)
        if self.task.monitor not in found:
            raise ValueError(
                f"{type(self.task).__name__}.evaluate gave {sorted(found)}, expected "
                f"{self.task.monitor!r}, the task's monitor, among them"
            )
        return {name: float(value) for name, value in found.items()}

    def _is_better(self, value: float) -> bool:
        best = self.counts.best
        if not math.isfinite(value) or best is None:
            return math.isfinite(value)
        return value < best.value if self.task.lower_is_better else value > best.value

    def save(self) -> None:
        """Write a checkpoint."""
        self._watch.read()
        self._keeper.save(self.counts, self._spikes)
        self._watch.saved()

    def stop(self, reason: str, how_to_resume: str) -> None:
        """Save, and say how to go on."""
        with self.on_stream():
            if self._keeper.saved_step != self.counts.step:
                self.save()
        step, steps = self.counts.step, self.config.steps
        self.journal.event("stop", step, {"reason": reason})
        self.journal.say(
            f"{reason} at step {step} of {steps}, which is saved. To go on: {how_to_resume}"
        )

    def finish(self) -> Record:
        """The run's record, which is written where the run is done."""
        if self.finished and self.folder.record.exists():
            record = read_record(self.folder.record)
        else:
            record = self.record()
            if self.finished and self.place.leads:
                self._write_record(record)
        self.place.barrier()  # where one process returns, the others find the record
        return record

    def _write_record(self, record: Record) -> None:
        record.write(self.folder.record)
        content = {"date": record.date}
        if record.warning is not None:
            content["warning"] = record.warning
            self.journal.say(f"WARNING: {record.warning}")
        self.journal.event("finish", self.counts.step, content)

    def record(self) -> Record:
        """What there is to say of the run by now."""
        counts = self.counts
        at_best = [e for e in counts.curve if counts.best and e["step"] == counts.best.step]
        return Record(
            task=self.task.name,
            seed=self.task.seed,
            config=self.identity,
            versions=versions(),
            hardware=self._hardware(),
            date=now(),
            steps=counts.step,
            complete=self.finished,
            pieces=len(counts.pieces),
            together=self.together,
            seconds=counts.seconds,
            training_seconds=self._watch.training_seconds,
            num_parameters=sum(p.numel() for p in self._step.module.parameters()),
            metrics=dict(counts.curve[-1]["metrics"]) if counts.curve else {},
            best=at_best[-1] if at_best else None,
            curve=counts.curve,
            spikes=counts.spikes,
            skipped=counts.skipped,
            ran_on=self._ran_on(),
            warning=self._warning(),
        )

    def _ran_on(self) -> list[dict[str, Any]]:
        pieces = self.counts.pieces
        ends = [*(piece["first_step"] for piece in pieces[1:]), self.counts.step]
        return [
            {"steps": end - piece["first_step"]}
            | {name: piece[name] for name in ("hardware", "together", "versions")}
            for piece, end in zip(pieces, ends, strict=True)
        ]

    def _warning(self) -> str | None:
        skipped, steps = self.counts.skipped, self.counts.step
        if 2 * skipped <= steps:
            return None
        return (
            f"{skipped} of {steps} steps were skipped, more than half: their gradients were not "
            "finite, or far too long. The network is hardly trained"
        )

    def _hardware(self) -> dict[str, str | int]:
        return hardware(self.place.device) | {"processes": self.place.shard.world}
