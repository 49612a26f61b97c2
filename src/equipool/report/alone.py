"""Seconds of steps that had the device to themselves.

Runs of an experiment share a device, so their own seconds say little of the method. A short run of
the same settings that was alone tells what a step costs.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from equipool.report.runs import Entry, RunResult

# Fields on which the cost of a step does not depend: numbers that something is multiplied by.
SAME_COST = ("seed", "readout_aux_weight", "local_aux_weight")
# Settings of the training that cost something, whatever their number, or nothing.
SWITCHES = ("compile", "ema_decay", "aux_weight")
STEADY = 1.3  # the slowest steps of a run alone over its fastest, at most


def timed(runs: Sequence[RunResult], alone: Sequence[RunResult]) -> list[RunResult]:
    """The runs with the seconds that their steps take alone on the device; those of which no run
    alone tells are as they were."""
    return [_at_speed(run, seconds_alone(run, alone)) for run in runs]


def untimed(runs: Sequence[RunResult], alone: Sequence[RunResult]) -> list[str]:
    """Names of the runs of which no run alone tells what a step costs."""
    return [run.name for run in runs if seconds_alone(run, alone) is None]


def check_timed(runs: Sequence[RunResult], alone: Sequence[RunResult]) -> None:
    """Raise where no run alone tells what a step of one of the runs costs."""
    missing = untimed(runs, alone)
    if missing:
        raise ValueError(f"no run alone has the settings of {', '.join(missing)}")


def seconds_alone(run: RunResult, alone: Sequence[RunResult]) -> float | None:
    """Seconds of a step: the mean over those runs of `alone` that have the run's device and its
    settings, but for those that cost nothing; None where there is none."""
    found = [_step(other) for other in alone if _settings(other) == _settings(run)]
    return statistics.fmean(found) if found else None


def _settings(run: RunResult) -> str:
    """What the cost of a step depends on. A setting that an older record does not have yet is as
    one that is None."""
    fields = {
        name: value
        for name, value in run.config["fields"].items()
        if name not in SAME_COST and value is not None
    }
    training = run.config["training"]
    captured = training.get("capture") is not False  # None: where that is possible
    switches = [bool(training.get(name)) for name in SWITCHES]
    devices = sorted({_device(piece["hardware"]) for piece in run.ran_on})
    return json.dumps(
        [run.task, fields, training["precision"], captured, switches, devices], sort_keys=True
    )


def _device(hardware: Entry) -> str:
    return str(hardware.get("gpu", hardware["cpu"]))


def _step(run: RunResult) -> float:
    """From the first evaluation to the last, where there are two: before the first step kernels are
    compiled and the step is captured, which a longer run does not do more often."""
    if any(piece.get("together", 1) != 1 for piece in run.ran_on):
        raise ValueError(f"{run.name} was trained together with others, expected a run alone")
    first, last = run.curve[0], run.curve[-1]
    if first["step"] == last["step"]:
        return run.training_seconds / run.steps
    _check_steady(run)
    return _between(first, last)


def _check_steady(run: RunResult) -> None:
    """A run does not know of other processes on its device, but they make some steps slower."""
    found = [_between(before, after) for before, after in pairwise(run.curve)]
    if max(found) > STEADY * min(found):
        raise ValueError(
            f"{run.name} took {min(found):.3g} to {max(found):.3g} seconds a step between its "
            f"evaluations, expected a run alone, whose slowest take {STEADY} times the fastest "
            "at most"
        )


def _between(before: Entry, after: Entry) -> float:
    """Seconds of a step from one evaluation to another."""
    seconds: float = after["training_seconds"] - before["training_seconds"]
    return seconds / (after["step"] - before["step"])


def _at_speed(run: RunResult, seconds: float | None) -> RunResult:
    if seconds is None:
        return run
    curve = [entry | {"training_seconds": entry["step"] * seconds} for entry in run.curve]
    return replace(run, curve=curve, training_seconds=run.steps * seconds)
