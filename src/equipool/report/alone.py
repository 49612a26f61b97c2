"""Seconds of steps that had the device to themselves.

Runs of an experiment share a device, so their own seconds say little of the method. A short run of
the same settings that was alone tells what a step costs.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import replace

from equipool.report.runs import RunResult

# Fields on which the cost of a step does not depend: numbers that something is multiplied by.
SAME_COST = ("seed", "readout_aux_weight", "local_aux_weight")


def timed(runs: Sequence[RunResult], alone: Sequence[RunResult]) -> list[RunResult]:
    """The runs with the seconds that their steps take alone on the device; those of which no run
    alone tells are as they were."""
    return [_at_speed(run, seconds_alone(run, alone)) for run in runs]


def untimed(runs: Sequence[RunResult], alone: Sequence[RunResult]) -> list[str]:
    """Names of the runs of which no run alone tells what a step costs."""
    return [run.name for run in runs if seconds_alone(run, alone) is None]


def seconds_alone(run: RunResult, alone: Sequence[RunResult]) -> float | None:
    """Seconds of a step: the mean over those runs of `alone` that have the run's settings, but for
    those in `SAME_COST`; None where there is none."""
    found = [_step(other) for other in alone if _settings(other) == _settings(run)]
    return statistics.fmean(found) if found else None


def _settings(run: RunResult) -> str:
    """What the cost of a step depends on."""
    fields = {name: v for name, v in run.config["fields"].items() if name not in SAME_COST}
    return json.dumps([run.task, fields, run.config["training"]["precision"]], sort_keys=True)


def _step(run: RunResult) -> float:
    """From the first evaluation to the last, where there are two: before the first step kernels are
    compiled and the step is captured, which a longer run does not do more often."""
    if any(piece.get("together", 1) != 1 for piece in run.ran_on):
        raise ValueError(f"{run.name} was trained together with others, expected a run alone")
    first, last = run.curve[0], run.curve[-1]
    if first["step"] == last["step"]:
        return run.training_seconds / run.steps
    seconds: float = last["training_seconds"] - first["training_seconds"]
    return seconds / (last["step"] - first["step"])


def _at_speed(run: RunResult, seconds: float | None) -> RunResult:
    if seconds is None:
        return run
    curve = [entry | {"training_seconds": entry["step"] * seconds} for entry in run.curve]
    return replace(run, curve=curve, training_seconds=run.steps * seconds)
