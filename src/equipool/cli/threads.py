"""How many threads torch uses on a CPU: by default the faster of one and all.

A small network can be faster with one thread than with several, above all beside other processes,
so the commands measure a few steps first. The library itself never changes torch's setting. As the
number of threads can change the rounding, a run is resumed with the number it was started with,
which its log has among the hardware.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import TYPE_CHECKING

from equipool.cli import console

if TYPE_CHECKING:
    from equipool.training import Task, TrainingConfig

TURNS = 7  # of which the first warms up
LONG_ENOUGH = 0.1  # seconds of a turn, many slices of the system's scheduler
ENOUGH = 1.5  # seconds, after which no further turn begins
HOPELESS = 4  # times as slow in the first turn, which is long enough to decide
WORTH_IT = 0.9  # of one thread's time: beside other processes, several lose more than they gain

Step = Callable[[], object]


def read_threads(text: str) -> int | None:
    """The number that was typed; None for `auto`."""
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"--threads is {text!r}, expected auto or a number of 1 or more")
    return int(text)


@contextmanager
def using_threads(
    number: int | None,
    device: str | None,
    make_step: Callable[[], Step],
    run: str | Path | None = None,
    report: Callable[[str], None] = console.report_line,
) -> Iterator[None]:
    """Choose the number of threads inside the block, and report it. On a GPU this does nothing.

    Args:
        number: as `read_threads` gives it.
        device: where the command computes; None for a GPU if there is one.
        make_step: gives the work to measure.
        run: the directory of a run that may be resumed.
        report: is called with the choice.
    """
    import torch

    from equipool.training.devices import resolve_device

    before = torch.get_num_threads()
    try:
        if resolve_device(device).type == "cpu":
            _choose(number, make_step, run, report)
        yield
    finally:
        torch.set_num_threads(before)


def _choose(
    number: int | None,
    make_step: Callable[[], Step],
    run: str | Path | None,
    report: Callable[[str], None],
) -> None:
    import torch

    reason = "--threads"
    if number is None and run is not None:
        number, reason = threads_of(run), "as the run was started"
    if number is None:
        counts = (1, torch.get_num_threads())
        if counts[1] == 1 or int(os.environ.get("WORLD_SIZE", "1")) > 1:
            return
        with torch.random.fork_rng(devices=[]):
            seconds = measure(make_step(), counts)
        number = faster(seconds)
        reason = ", ".join(f"{1000 * seconds[one]:.3g} ms per step with {one}" for one in counts)
    torch.set_num_threads(number)
    report(f"Threads: {number} ({reason})")


def faster(seconds: dict[int, float]) -> int:
    """The first number of threads unless the second is clearly faster.

    Example:
        >>> faster({1: 0.010, 4: 0.004}), faster({1: 0.010, 4: 0.0095})
        (4, 1)
    """
    first, second = seconds
    return second if seconds[second] < WORTH_IT * seconds[first] else first


def measure(step: Step, counts: Sequence[int]) -> dict[int, float]:
    """Seconds per step with each number of threads. They take turns, so that other processes
    disturb all of them alike. An average without the slowest turn: the median would miss that
    threads wait for each other in some turns only."""
    import torch

    found: dict[int, list[float]] = {count: [] for count in counts}
    begin = perf_counter()
    for turn in range(TURNS):
        for count in counts:
            torch.set_num_threads(count)
            start, steps = perf_counter(), 0
            while not steps or perf_counter() - start < LONG_ENOUGH:
                step()
                steps += 1
            found[count].append((perf_counter() - start) / steps)
        hopeless = found[counts[-1]][0] > HOPELESS * found[counts[0]][0]  # on a crowded machine
        if hopeless or (turn and perf_counter() - begin > ENOUGH):
            break
    return {count: _average(seconds[1:] or seconds) for count, seconds in found.items()}


def _average(turns: list[float]) -> float:
    return fmean(sorted(turns)[:-1] or turns)


def threads_of(run: str | Path) -> int | None:
    """The number of threads that the run in this directory was started with; None if there is none,
    or if it was started on a GPU."""
    from equipool.training import RunFolder, read_log

    for entry in read_log(RunFolder(run).log, lambda damaged: None):
        if entry.get("event") == "start" and entry["hardware"]["device"] == "cpu":
            return int(entry["hardware"]["threads"])
    return None


def training_step(task: Task, config: TrainingConfig) -> Step:
    """A step of training, as the engine takes it."""
    import torch

    from equipool.training import Shard
    from equipool.training.devices import Accelerator
    from equipool.training.step import NUMBERS, TrainStep

    accelerator = Accelerator("cpu", config.precision)
    chunk = task.batches(0, 1, accelerator.device, Shard())
    batch = {name: values[0] for name, values in chunk.items()}
    step = TrainStep(task, config, accelerator, batch)
    batch[NUMBERS] = torch.tensor(step.numbers(0))

    def take() -> None:
        with step.depths.set_to(step.depths(0)):  # as deep every time
            step(batch)

    return take
