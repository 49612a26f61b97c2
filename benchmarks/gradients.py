"""Accuracy and cost of each differentiation method, and the speed of each solver.

    python benchmarks/gradients.py --device cpu --out benchmarks/records/cpu-gradients.json

It takes some minutes on a CPU. On a batch of your own, `equipool.compare_gradients` does the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import torch
import typer
from equipool.bench.cases import Budget
from equipool.bench.command import (
    Commit,
    Device,
    Out,
    check_names,
    check_out,
    choose_device,
    full_command,
)
from equipool.bench.record import Timing, git_commit
from equipool.bench.terminal import make_console, progress_bar
from equipool.bench.timing import release_memory
from gradients_measures import (
    measure_backward,
    measure_cost,
    measure_quality,
    measure_solvers,
    measure_stopping,
)
from gradients_record import (
    PARTS,
    Backward,
    Cost,
    GradientRecord,
    Part,
    Quality,
    Solve,
    Stopping,
)
from gradients_subjects import STATES, State, Subjects, make_settling_layer
from rich.console import Console
from rich.table import Table

from equipool.environment import hardware, now, versions

FAR = 400
HIDDEN = ("task", "recipe")  # of the trainings, the same in all rows
SETTLING = "residual network, strong regulariser"
TIMED: tuple[State, ...] = ("trained", "convex")  # untrained layers cost as much as trained ones


app = typer.Typer(add_completion=False)


class CostCase(NamedTuple):
    """The sizes of a training step that is timed."""

    sets: int
    size: int


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    sizes: tuple[int, ...]
    num_steps: tuple[int, ...]
    far_sizes: tuple[int, ...]
    """Sizes whose gradients are also compared after `FAR` steps, where most sets converge."""

    sets: int
    training_steps: int
    cost_cases: tuple[CostCase, ...]
    cost_steps: tuple[int, ...]
    solver_sizes: tuple[int, ...]
    max_steps: int
    stopping: CostCase
    budget: Budget
    solver_repeats: int


CPU = Plan(
    sizes=(8, 64, 300),
    num_steps=(5, 15, 50, 100),
    far_sizes=(8, 64),
    sets=16,
    training_steps=200,
    cost_cases=(CostCase(64, 64),),
    cost_steps=(15, 50),
    solver_sizes=(8, 64),
    max_steps=400,
    stopping=CostCase(256, 64),
    budget=Budget(repeats=7, warmup=1),
    solver_repeats=2,
)
CUDA = replace(
    CPU,
    cost_cases=(CostCase(64, 64), CostCase(256, 300)),
    far_sizes=(),
    stopping=CostCase(16384, 64),
    solver_repeats=1,
)
QUICK = Plan(
    sizes=(2,),
    num_steps=(6,),
    far_sizes=(),
    sets=2,
    training_steps=2,
    cost_cases=(CostCase(2, 2),),
    cost_steps=(2,),
    solver_sizes=(2,),
    max_steps=3,
    stopping=CostCase(2, 2),
    budget=Budget(repeats=1, warmup=0),
    solver_repeats=1,
)


class Job(NamedTuple):
    """One measurement."""

    part: Part
    description: str
    measured: Callable[[], Iterator[Any]]
    """The rows of the part."""


def plan_for(device: torch.device, quick: bool) -> Plan:
    """The plan for a device."""
    return QUICK if quick else (CUDA if device.type == "cuda" else CPU)


def run_plan(
    plan: Plan,
    device: torch.device,
    command: str,
    commit: str,
    console: Console,
    out: Path | None = None,
    parts: Collection[Part] = PARTS,
) -> GradientRecord:
    """Measure some parts of a plan with a progress bar. The record is written to `out` after every
    measurement, so that an interrupted run leaves one, too."""
    record = GradientRecord(command, now(), commit, versions(), hardware(device))
    subjects = Subjects(device, plan.training_steps)
    jobs = [job for job in make_jobs(plan, subjects) if job.part in parts]
    with progress_bar(console, len(jobs)) as advance:
        for job in jobs:
            advance(job.description)
            release_memory(device)
            getattr(record, job.part).extend(job.measured())
            record.training[:] = subjects.trainings
            if out is not None:
                record.write(out)
            advance(steps=1)
    return record


def make_jobs(plan: Plan, subjects: Subjects) -> Iterator[Job]:
    """All measurements of a plan. The solvers come last because they take longest."""
    measured: Callable[[], Iterator[Any]]
    for size, state in product(plan.sizes, STATES):
        measured = partial(_quality, plan, subjects, state, size)
        yield Job("quality", f"quality: {state}, {size}", measured)
    yield Job("stopping", "early stopping", partial(_stopping, plan, subjects.device))
    for case in plan.cost_cases:
        for convex, name in ((True, "convex, trained"), (False, SETTLING)):
            measured = partial(_backward, plan, subjects, case, name, convex)
            yield Job("backward", f"implicit: {name}, {case.size}", measured)
    for case, state in product(plan.cost_cases, TIMED):
        yield Job(
            "cost", f"cost: {state}, {case.size}", partial(_cost, plan, subjects, state, case)
        )
    for size, state in product(plan.solver_sizes, STATES):
        measured = partial(_solvers, plan, subjects, state, size)
        yield Job("solvers", f"solvers: {state}, {size}", measured)


def _quality(plan: Plan, subjects: Subjects, state: State, size: int) -> Iterator[Quality]:
    layer = subjects(state, size)
    for layer.num_steps in (*plan.num_steps, *[FAR] * (size in plan.far_sizes)):
        yield from measure_quality(layer, state, plan.sets, subjects.device)


def _stopping(plan: Plan, device: torch.device) -> Iterator[Stopping]:
    sets, size = plan.stopping
    layer = make_settling_layer(size, learning_rate=0.025).to(device)
    yield measure_stopping(layer, sets, device, plan.budget)


def _backward(
    plan: Plan, subjects: Subjects, case: CostCase, name: str, convex: bool
) -> Iterator[Backward]:
    layer = subjects("convex", case.size) if convex else make_settling_layer(case.size)
    device = subjects.device
    yield measure_backward(name, layer.to(device), case.sets, device, plan.budget)


def _cost(plan: Plan, subjects: Subjects, state: State, case: CostCase) -> Iterator[Cost]:
    layer = subjects(state, case.size)
    for layer.num_steps in plan.cost_steps:
        yield from measure_cost(layer, state, case.sets, subjects.device, plan.budget)


def _solvers(plan: Plan, subjects: Subjects, state: State, size: int) -> Iterator[Solve]:
    return measure_solvers(
        subjects(state, size), state, plan.sets, plan.max_steps, subjects.device,
        plan.solver_repeats,
    )  # fmt: skip


def tables(record: GradientRecord) -> Iterator[Table]:
    """A table for each part that the record has rows of, with a column for each number."""
    for part in ("training", *PARTS):
        rows: list[Any] = getattr(record, part)
        if rows:
            names = [field.name for field in fields(rows[0]) if field.name not in HIDDEN]
            table = Table(*map(_heading, names), title=part, title_justify="left")
            for row in rows:
                table.add_row(*(_cell(name, getattr(row, name)) for name in names))
            yield table


def _heading(name: str) -> str:
    return name.replace("_bytes", " MiB").replace("way", "method").replace("_", " ")


def _cell(name: str, value: object) -> str:
    if isinstance(value, Timing):
        return f"{value.median:.3g} ms"
    if name.endswith("_bytes") and isinstance(value, int):
        return f"{value / 2**20:.3g}"
    if isinstance(value, float):
        return f"{value:.3g}"
    return "-" if value is None else str(value)


@app.command()
def main(
    device: Device = "auto",
    quick: Annotated[bool, typer.Option("--quick", help="tiny sizes, as a test")] = False,
    only: Annotated[
        str | None,
        typer.Option(metavar="PART[,PART]", help="quality, cost, solvers, stopping or backward"),
    ] = None,
    out: Out = None,
    commit: Commit = None,
) -> None:
    """Measure accuracy and cost of each differentiation method, and the speed of each solver."""
    where, console = choose_device(device), make_console()
    parts = [*PARTS] if only is None else only.split(",")
    check_names("only", parts, PARTS)
    check_out(out)
    start = f"python benchmarks/gradients.py --device {where.type}"
    command = full_command(start, {"quick": quick, "only": only})
    plan = plan_for(where, quick)
    record = run_plan(plan, where, command, commit or git_commit(), console, out, cast(Any, parts))
    for table in tables(record):
        console.print(table)


if __name__ == "__main__":
    app()
