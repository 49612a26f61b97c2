"""The measurements of gradients.py."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import product

import torch
from gradients_record import Backward, Cost, Quality, Solve, Stopping, finite
from gradients_subjects import State, make_examples
from torch import Tensor

from equipool import EquilibriumAggregation
from equipool.bench.cases import Budget
from equipool.bench.record import Timing
from equipool.bench.timing import release_memory, summarize
from equipool.comparison.compare import exact_gradient, usual_methods
from equipool.comparison.measure import (
    Batch,
    TrainingPass,
    agreement,
    peak_bytes_of,
    random_projection,
    seconds_of,
)
from equipool.differentiation import Implicit, Unrolled
from equipool.linear_solvers import ConjugateGradients, LinearSolution, LinearSolver
from equipool.objective import LinearMap
from equipool.sets import Sets
from equipool.solvers import (
    GradientDescent,
    Nesterov,
    Newton,
    SafeguardedNesterov,
    Solver,
    StronglyConvexNesterov,
)
from equipool.starts import Start
from equipool.steps import ToTolerance

NEWTON_UP_TO = 64
FEW_STEPS = 50
EVALUATION_SEED = 5


def measure_quality(
    layer: EquilibriumAggregation, state: State, sets: int, device: torch.device
) -> Iterator[Quality]:
    """Each method compared with the exact gradient, at the layer's number of steps."""
    batch = make_examples(sets, EVALUATION_SEED, device).batch
    upstream = _upstream(batch, layer)
    exact = exact_gradient(layer, batch, upstream)
    for name, way in usual_methods(layer).items():
        found = TrainingPass(layer, batch, upstream, way).gradient()
        parameters = agreement(found.parameters, exact.parameters)
        x = agreement(found.x, exact.x)
        yield Quality(
            state, layer.out_channels, sets, layer.num_steps, name,
            finite(parameters.cosine), finite(parameters.relative_error),
            finite(x.cosine), finite(x.relative_error), found.converged, found.fallback,
        )  # fmt: skip


def measure_cost(
    layer: EquilibriumAggregation, state: State, sets: int, device: torch.device, budget: Budget
) -> Iterator[Cost]:
    """Time and memory of a training step with each method, at the layer's number of steps."""
    batch = make_examples(sets, EVALUATION_SEED, device).batch
    upstream = _upstream(batch, layer)
    ways = usual_methods(layer).items()
    steps = {name: TrainingPass(layer, batch, upstream, way) for name, way in ways}
    gradients, peaks = {}, {}
    for name, step in steps.items():
        release_memory(device)
        gradients[name] = step.gradient()
        step.clear()
        peaks[name] = peak_bytes_of(step, device)
        step.clear()
    timings = time_in_turn({n: clocked(step, device) for n, step in steps.items()}, budget)
    for name, timing in timings.items():
        yield Cost(
            state, layer.out_channels, sets, batch.x.shape[0], layer.num_steps, name, timing,
            peaks[name], gradients[name].converged, gradients[name].fallback,
        )  # fmt: skip


def measure_backward(
    name: str,
    layer: EquilibriumAggregation,
    sets: int,
    device: torch.device,
    budget: Budget,
    steps: tuple[int, int] = (5, 50),
) -> Backward:
    """Memory of an implicit gradient over the number of steps, and time of its backward pass."""
    batch = make_examples(sets, EVALUATION_SEED, device).batch
    upstream = _upstream(batch, layer)
    short, long = steps
    peaks = {}
    for layer.num_steps in steps:
        release_memory(device)
        step = TrainingPass(layer, batch, upstream, Implicit())
        step()
        step.clear()
        peaks[layer.num_steps] = peak_bytes_of(step, device)
    counted = Counted(ConjugateGradients())
    fallback = TrainingPass(layer, batch, upstream, Implicit(counted)).gradient().fallback
    assert fallback is not None
    implicit = TrainingPass(layer, batch, upstream, Implicit())
    unrolled = TrainingPass(layer, batch, upstream, Unrolled())
    timings = time_in_turn(
        {
            "implicit": clocked_backward(implicit, device),
            "unrolled": clocked_backward(unrolled, device),
        },
        budget,
    )
    return Backward(
        name, layer.out_channels, sets, short, long, peaks[short], peaks[long],
        counted.most_steps, fallback, timings["implicit"], timings["unrolled"],
    )  # fmt: skip


class Counted(LinearSolver):
    """Wraps a linear solver and counts the largest number of products it took."""

    def __init__(self, solver: LinearSolver) -> None:
        super().__init__(solver.ridge)
        self.solver = solver
        self.most_steps = 0

    def attempt(self, product: LinearMap, b: Tensor) -> LinearSolution:
        solution = self.solver.attempt(product, b)
        self.most_steps = max(self.most_steps, int(solution.steps.max()))
        return solution


Clocked = Callable[[], float]
"""Runs once and returns the milliseconds that took."""


def clocked(step: Callable[[], object], device: torch.device) -> Clocked:
    """From call to result."""
    return lambda: 1000 * seconds_of(step, device, repeats=1)[0]


def clocked_backward(step: TrainingPass, device: torch.device) -> Clocked:
    """The backward pass alone."""

    def once() -> float:
        step.clear()
        y = step.batch.pool(step.layer)
        return clocked(lambda: y.backward(step.upstream), device)()

    return once


def time_in_turn(steps: dict[str, Clocked], budget: Budget) -> dict[str, Timing]:
    """Time all of them in turn, repeatedly, so that other load on the machine affects them
    equally."""
    for _, step in product(range(budget.warmup), steps.values()):
        step()
    rounds = [{name: step() for name, step in steps.items()} for _ in range(budget.repeats)]
    return {name: summarize([times[name] for times in rounds]) for name in steps}


def solvers_for(layer: EquilibriumAggregation) -> dict[str, Solver]:  # type: ignore[type-arg]
    """The solvers, with the layer's learned step size where they take one."""
    own = layer.solver
    assert isinstance(own, Nesterov)
    rate, momentum = own.learning_rate.item(), own.momentum.item()
    found: dict[str, Solver] = {  # type: ignore[type-arg]
        "GradientDescent": GradientDescent(rate),
        "GradientDescent, momentum": GradientDescent(rate, momentum),
        "Nesterov": Nesterov(rate, momentum),
        "SafeguardedNesterov": SafeguardedNesterov(rate),
    }
    if layer.out_channels <= NEWTON_UP_TO:
        found["Newton"] = Newton()
        found["Newton after Nesterov"] = Newton(after=Nesterov(rate, momentum), num_steps=5)
    return found


def measure_solvers(
    layer: EquilibriumAggregation,
    state: State,
    sets: int,
    max_steps: int,
    device: torch.device,
    repeats: int,
) -> Iterator[Solve]:
    """Each solver to the tolerance of 1e-3."""
    batch = make_examples(sets, EVALUATION_SEED, device).batch
    solvers = solvers_for(layer)
    if state == "convex":
        solvers["StronglyConvexNesterov"] = StronglyConvexNesterov()
    for name, solver in solvers.items():
        layer.solver = solver.to(device)
        # Newton steps are expensive, and those after another solver come at the end of the budget.
        few = isinstance(solver, Newton)
        layer.steps = ToTolerance(1e-3, min(max_steps, FEW_STEPS) if few else max_steps)
        with torch.no_grad():
            solution = batch.solve(layer)
            step = clocked(lambda: batch.pool(layer), device)
            timing = summarize([step() for _ in range(1 if few else repeats)])
        assert solution.converged is not None
        yield Solve(
            state, layer.out_channels, sets, name, layer.num_steps, layer.steps.tolerance,
            float(solution.converged.double().mean()), float(solution.steps.double().median()),
            int(solution.steps.max()), timing,
        )  # fmt: skip


class GivenStart(Start):
    """A given start for each set."""

    y: Tensor

    def __init__(self, y: Tensor) -> None:
        super().__init__()
        self.register_buffer("y", y)

    def forward(self, x: Tensor, sets: Sets) -> Tensor:
        return self.y


@torch.no_grad()
def measure_stopping(
    layer: EquilibriumAggregation, sets: int, device: torch.device, budget: Budget
) -> Stopping:
    """Inference with and without stopping converged sets. Every second set starts five steps before
    the end of its search."""
    batch = make_examples(sets, EVALUATION_SEED, device).batch
    layer.steps = ToTolerance(1e-3, max_steps=200)
    layer.start = GivenStart(_half_done(layer, batch, ahead=5))
    solution = batch.solve(layer)
    steps = solution.steps.double()
    fixed_layer = copy.deepcopy(layer)
    fixed_layer.steps = int(steps.max())
    timings = time_in_turn(
        {
            "fixed": clocked(lambda: batch.pool(fixed_layer), device),
            "stopping": clocked(lambda: batch.pool(layer), device),
        },
        budget,
    )
    difference = (batch.pool(fixed_layer) - solution.y).abs().max()
    return Stopping(
        layer.out_channels, sets, batch.x.shape[0], layer.steps.tolerance,
        float(steps[::2].median()), float(steps[1::2].median()), fixed_layer.num_steps,
        timings["fixed"], timings["stopping"], float(difference),
    )  # fmt: skip


def _half_done(layer: EquilibriumAggregation, batch: Batch, ahead: int) -> Tensor:
    """Starts `[B, K]`; every second set starts some steps before the end of its search."""
    solution = layer.solve(batch.x, batch.index, dim_size=batch.dim_size, trajectory=True)
    assert solution.trajectory is not None
    at = (solution.steps - ahead).clamp(min=0)
    at[1::2] = 0
    return solution.trajectory[at, torch.arange(len(at), device=at.device)]


def _upstream(batch: Batch, layer: EquilibriumAggregation) -> Tensor:
    assert batch.dim_size is not None
    return random_projection(batch.x.new_zeros(batch.dim_size, layer.out_channels))
