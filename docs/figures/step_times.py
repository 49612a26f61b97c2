"""Training times as if each run had had the device to itself.

Runs of an experiment share a device, so their own times say little about the method. A short solo
run with the same settings measures what a step costs.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from equipool.report import RunResult
from equipool.report.runs import Entry

# Fields that do not change the cost of a step: the seed, and factors of a product.
SAME_COST = ("seed", "readout_aux_weight", "local_aux_weight")
# Settings of the training that cost the same whatever their value, unless they are off.
SWITCHES = ("compile", "ema_decay", "aux_weight")
STEADY = 1.3  # largest ratio of the slowest to the fastest steps of a solo run


def with_solo_times(runs: Sequence[RunResult], solo: Sequence[RunResult]) -> list[RunResult]:
    """The runs with the training times of solo runs; a run without a solo run is unchanged."""
    return [_with_time(run, solo_seconds(run, solo)) for run in runs]


def without_solo_run(runs: Sequence[RunResult], solo: Sequence[RunResult]) -> list[str]:
    """Names of the runs for which there is no solo run."""
    return [run.name for run in runs if solo_seconds(run, solo) is None]


def check_solo_runs(runs: Sequence[RunResult], solo: Sequence[RunResult]) -> None:
    """Raise if there is no solo run for one of the runs."""
    missing = without_solo_run(runs, solo)
    if missing:
        raise ValueError(f"no solo run has the settings of {', '.join(missing)}")


def solo_seconds(run: RunResult, solo: Sequence[RunResult]) -> float | None:
    """Seconds per step: the mean over the solo runs on the same device with the same settings,
    except those that cost nothing; None if there is no such run."""
    found = [_seconds_per_step(other) for other in solo if _cost_key(other) == _cost_key(run)]
    return statistics.fmean(found) if found else None


def _cost_key(run: RunResult) -> str:
    """Everything that the cost of a step depends on. A setting that an older record does not have
    counts as None."""
    fields = {
        name: value
        for name, value in run.config["fields"].items()
        if name not in SAME_COST and value is not None
    }
    training = run.config["training"]
    captured = training.get("capture") is not False  # None: if possible
    switches = [bool(training.get(name)) for name in SWITCHES]
    devices = sorted({_device(piece["hardware"]) for piece in run.ran_on})
    return json.dumps(
        [run.task, fields, training["precision"], captured, switches, devices], sort_keys=True
    )


def _device(hardware: Entry) -> str:
    return str(hardware.get("gpu", hardware["cpu"]))


def _seconds_per_step(run: RunResult) -> float:
    """From the first evaluation to the last, if there are two: before the first step kernels are
    compiled and the step is captured, which a longer run does only once as well."""
    if any(piece.get("together", 1) != 1 for piece in run.ran_on):
        raise ValueError(f"{run.name} shared the device with other runs, expected a solo run")
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
            f"{run.name} took {min(found):.3g} to {max(found):.3g} seconds per step between "
            f"evaluations, expected a solo run, whose slowest steps take at most {STEADY} times "
            "the fastest"
        )


def _between(before: Entry, after: Entry) -> float:
    """Seconds per step from one evaluation to another."""
    seconds: float = after["training_seconds"] - before["training_seconds"]
    return seconds / (after["step"] - before["step"])


def _with_time(run: RunResult, seconds: float | None) -> RunResult:
    if seconds is None:
        return run
    curve = [entry | {"training_seconds": entry["step"] * seconds} for entry in run.curve]
    return replace(run, curve=curve, training_seconds=run.steps * seconds)
