"""Whether `--threads auto` takes the faster number of threads; exits with 1 if it is 20 % slower.

    python benchmarks/cpu_threads.py --out benchmarks/records/cpu-threads.json

Run it on a machine that does nothing else: each workload is measured alone, and beside a process
that keeps one core busy. OMP_NUM_THREADS must not be set.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Annotated

import torch
import typer

from equipool.bench.cases import Case, make_batch
from equipool.bench.command import Commit, Out, check_out
from equipool.bench.paths import PATHS
from equipool.bench.record import FORMAT, git_commit
from equipool.bench.steps import make_step
from equipool.cli.threads import Step, faster, measure, training_step
from equipool.environment import hardware, now, versions
from equipool.experiments.median.task import MedianTask
from equipool.training import TrainingConfig

ALLOWED = 1.2  # times the step of the better number
NEIGHBOURS = ("none", "one busy process")
TURN = 0.25  # seconds
CPU = torch.device("cpu")

app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Choices:
    """What was chosen for one workload, and what a step takes."""

    workload: str
    neighbours: str
    chosen: list[int]
    ms_per_step: dict[int, float]
    """By number of threads; an average over many turns."""

    @property
    def worst(self) -> float:
        """Times the step of the better number, of the worst choice."""
        times = self.ms_per_step
        return max(times[number] for number in self.chosen) / min(times.values())


def layer_step(sets: int) -> Step:
    """The layer of `equipool bench --preset quick`."""
    case = Case(sets, 26, num_steps=5)
    return make_step(case, make_batch(case, CPU), PATHS["equipool"], "training", "float32")


def median_step() -> Step:
    """The quick median experiment's training step."""
    return training_step(MedianTask.quick(), TrainingConfig(steps=1))


WORKLOADS: dict[str, Callable[[], Step]] = {
    "layer, 8 sets": lambda: layer_step(8),
    "layer, 64 sets": lambda: layer_step(64),
    "median, quick": median_step,
}


@app.command()
def main(
    choices: Annotated[int, typer.Option(help="choices per workload")] = 5,
    turns: Annotated[int, typer.Option(help="turns of a quarter second per number")] = 20,
    out: Out = None,
    commit: Commit = None,
) -> None:
    """Compare the number of threads that the commands choose with the better one."""
    check_out(out)
    counts = (1, torch.get_num_threads())
    if counts[1] == 1:
        raise typer.BadParameter("torch has one thread: unset OMP_NUM_THREADS")
    command = f"python benchmarks/cpu_threads.py --choices {choices} --turns {turns}"
    about = {"command": command,
             "date": now(), "commit": commit or git_commit(), "versions": versions(),
             "hardware": hardware(CPU), "format": FORMAT}  # fmt: skip
    rows = []
    for neighbours in NEIGHBOURS:
        with busy_processes(NEIGHBOURS.index(neighbours)):
            for workload, make in WORKLOADS.items():
                rows.append(judge(workload, neighbours, make(), counts, choices, turns))
                print(f"{rows[-1]}, worst {rows[-1].worst:.2f}", flush=True)
                if out is not None:
                    content = {**about, "rows": [{**asdict(r), "worst": r.worst} for r in rows]}
                    out.write_text(json.dumps(content, indent=1) + "\n")
    torch.set_num_threads(counts[1])
    if any(row.worst > ALLOWED for row in rows):
        raise typer.Exit(1)


def judge(
    workload: str, neighbours: str, step: Step, counts: tuple[int, int], choices: int, turns: int
) -> Choices:
    """Choose several times, then measure for longer."""
    chosen = [faster(measure(step, counts)) for _ in range(choices)]
    return Choices(workload, neighbours, chosen, long_run(step, counts, turns))


def long_run(step: Step, counts: tuple[int, int], turns: int) -> dict[int, float]:
    """Milliseconds per step with each number of threads, which take turns."""
    seconds, steps = dict.fromkeys(counts, 0.0), dict.fromkeys(counts, 0)
    for _ in range(turns):
        for count in counts:
            torch.set_num_threads(count)
            start = perf_counter()
            while perf_counter() - start < TURN:
                step()
                steps[count] += 1
            seconds[count] += perf_counter() - start
    return {count: 1000 * seconds[count] / steps[count] for count in counts}


@contextmanager
def busy_processes(number: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that compute all the time, during the block."""
    processes = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    app()
