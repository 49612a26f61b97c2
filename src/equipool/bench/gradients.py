"""`equipool bench gradients`: accuracy and cost of each differentiation method, and the speed of
each solver."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

from equipool.bench.gradients_measures import (
    measure_backward,
    measure_cost,
    measure_quality,
    measure_solvers,
    measure_stopping,
)
from equipool.bench.gradients_record import PARTS, GradientRecord, Part
from equipool.bench.gradients_subjects import STATES, State, Subjects, make_settling_layer
from equipool.bench.terminal import progress_bar
from equipool.bench.timing import Budget, release_memory
from equipool.environment import hardware, now, versions

FAR = 400
TIMED: tuple[State, ...] = ("trained", "convex")  # untrained layers cost as much as trained ones


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
    run: Callable[[GradientRecord], None]


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
            job.run(record)
            record.training[:] = subjects.trainings
            if out is not None:
                record.write(out)
            advance(steps=1)
    return record


def make_jobs(plan: Plan, subjects: Subjects) -> Iterator[Job]:
    """All measurements of a plan. The solvers come last because they take longest."""
    for size in plan.sizes:
        for state in STATES:
            run = _quality(plan, subjects, state, size)
            yield Job("quality", f"quality: {state}, {size}", run)
    yield Job("stopping", "early stopping", _stopping(plan, subjects.device))
    for case in plan.cost_cases:
        yield from _backward_jobs(plan, subjects, case)
    for case in plan.cost_cases:
        for state in TIMED:
            yield Job("cost", f"cost: {state}, {case.size}", _cost(plan, subjects, state, case))
    for size in plan.solver_sizes:
        for state in STATES:
            run = _solvers(plan, subjects, state, size)
            yield Job("solvers", f"solvers: {state}, {size}", run)


def _quality(
    plan: Plan, subjects: Subjects, state: State, size: int
) -> Callable[[GradientRecord], None]:
    def run(record: GradientRecord) -> None:
        layer = subjects(state, size)
        for layer.num_steps in (*plan.num_steps, *[FAR] * (size in plan.far_sizes)):
            record.quality.extend(measure_quality(layer, state, plan.sets, subjects.device))

    return run


def _solvers(
    plan: Plan, subjects: Subjects, state: State, size: int
) -> Callable[[GradientRecord], None]:
    def run(record: GradientRecord) -> None:
        found = measure_solvers(
            subjects(state, size), state, plan.sets, plan.max_steps, subjects.device,
            plan.solver_repeats,
        )  # fmt: skip
        record.solvers.extend(found)

    return run


def _stopping(plan: Plan, device: torch.device) -> Callable[[GradientRecord], None]:
    sets, size = plan.stopping

    def run(record: GradientRecord) -> None:
        layer = make_settling_layer(size, learning_rate=0.025).to(device)
        record.stopping.append(measure_stopping(layer, sets, device, plan.budget))

    return run


def _backward_jobs(plan: Plan, subjects: Subjects, case: CostCase) -> Iterator[Job]:
    def convex(record: GradientRecord) -> None:
        layer = subjects("convex", size)
        record.backward.append(measure_backward("convex, trained", layer, sets, device, budget))

    def settling(record: GradientRecord) -> None:
        layer = make_settling_layer(size).to(device)
        name = "residual network, strong regulariser"
        record.backward.append(measure_backward(name, layer, sets, device, budget))

    sets, size = case
    device, budget = subjects.device, plan.budget
    yield Job("backward", f"implicit: convex, {size}", convex)
    yield Job("backward", f"implicit: residual network, {size}", settling)


def _cost(
    plan: Plan, subjects: Subjects, state: State, case: CostCase
) -> Callable[[GradientRecord], None]:
    def run(record: GradientRecord) -> None:
        layer = subjects(state, case.size)
        for layer.num_steps in plan.cost_steps:
            found = measure_cost(layer, state, case.sets, subjects.device, plan.budget)
            record.cost.extend(found)

    return run
