"""Accuracy and cost of each differentiation method, and the speed of each solver.

    python benchmarks/gradients.py --device cpu --out benchmarks/records/NAME.jsonl

It takes some minutes on a CPU. On a batch of your own use
`equipool.diagnostics.compare_gradients`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from medians import MedianNetwork, draw, train
from recording import arguments, header, milliseconds, write
from torch import nn

import equipool
from equipool import EquilibriumAggregation, Nesterov, SquaredNorm, ToTolerance
from equipool.diagnostics.gradients import peak_bytes_of
from equipool.potentials import ConvexPotential

STATES = ("untrained", "trained", "convex")
SIZES = (8, 64, 300)
SET_SIZE, TRAINED_STEPS, TOLERANCE = 26, 10, 1e-3
NUMBERS = (5, 15, 50, 100, 400)  # of steps
FEW = 50  # steps of Newton's method


def make_layer(
    state: str, size: int, training_steps: int, device: torch.device
) -> EquilibriumAggregation:
    """A layer with the paper's defaults, or one with a convex potential; unless it stays untrained,
    after a short training on the median."""
    torch.manual_seed(0)
    options: dict[str, Any] = {}
    if state == "convex":
        options = {"potential": ConvexPotential(1, size), "regularizer": SquaredNorm(1.0),
                   "solver": Nesterov(0.5, momentum=0.5)}  # fmt: skip
    layer = EquilibriumAggregation(1, size, steps=TRAINED_STEPS, **options).to(device)
    if state != "untrained":
        network = MedianNetwork(layer, 1, size).to(device)
        network.embedding = nn.Identity()
        train(network, lambda g: draw(8, SET_SIZE, g), steps=training_steps, rate=1e-3)
    return layer


def quality(
    layer: EquilibriumAggregation, row: dict[str, Any], x: torch.Tensor
) -> Iterator[dict[str, Any]]:
    """Each method beside the exact gradient, with its time and memory."""
    for steps in NUMBERS:
        layer.steps = steps
        for found in equipool.diagnostics.compare_gradients(layer, x):
            yield row | {
                "part": "quality", "num_steps": steps, "way": found.method,
                "cosine": found.parameters.cosine, "error": found.parameters.relative_error,
                "converged": found.converged, "fallback": found.fallback,
                "milliseconds": 1000 * found.seconds, "peak_bytes": found.peak_bytes,
            }  # fmt: skip


def solvers(
    layer: EquilibriumAggregation, row: dict[str, Any], x: torch.Tensor
) -> Iterator[dict[str, Any]]:
    """Each solver to the tolerance, with the layer's learned step size where it takes one."""
    rate, momentum = layer.solver.learning_rate.item(), layer.solver.momentum.item()
    found: dict[str, Any] = {
        "GradientDescent": equipool.GradientDescent(rate),
        "Nesterov": Nesterov(rate, momentum),
        "SafeguardedNesterov": equipool.SafeguardedNesterov(rate),
        "Newton": equipool.Newton(),
    }
    if row["state"] == "convex":
        found["StronglyConvexNesterov"] = equipool.StronglyConvexNesterov()
    for name, solver in found.items():
        layer.solver = solver.to(x.device)
        layer.steps = ToTolerance(TOLERANCE, FEW if name == "Newton" else max(NUMBERS))
        with torch.no_grad():
            solution = layer.solve(x)
            timing = milliseconds(lambda: layer(x), x.device, least=2)
        yield row | {
            "part": "solvers", "solver": name, "max_steps": layer.steps.max_steps,
            "tolerance": TOLERANCE, "converged": solution.converged.double().mean().item(),
            "median_steps": solution.num_steps.double().median().item(),
            "most_steps": int(solution.num_steps.max()), "timing": timing,
        }  # fmt: skip


@torch.no_grad()
def stopping(layer: EquilibriumAggregation, x: torch.Tensor) -> dict[str, Any]:
    """Inference with and without stopping converged sets. Every second set starts five steps before
    the end of its search."""
    layer.steps = ToTolerance(TOLERANCE, max_steps=400)
    solution = layer.solve(x, trajectory=True)
    at = (solution.num_steps - 5).clamp(min=0)
    at[1::2] = 0
    start = solution.trajectory[at, torch.arange(len(at), device=x.device)]
    halfway = layer.solve(x, start=start)
    fixed = copy.deepcopy(layer)
    fixed.steps = int(halfway.num_steps.max())
    steps = halfway.num_steps.double()
    return {
        "part": "stopping", "sets": len(x), "elements": x[..., 0].numel(), "tolerance": TOLERANCE,
        "early_steps": steps[::2].median().item(), "late_steps": steps[1::2].median().item(),
        "fixed": milliseconds(lambda: fixed.solve(x, start=start), x.device),
        "stopping": milliseconds(lambda: layer.solve(x, start=start), x.device),
        "largest_difference": (fixed.solve(x, start=start).y - halfway.y).abs().max().item(),
    }  # fmt: skip


def backward(layer: EquilibriumAggregation, x: torch.Tensor) -> dict[str, Any]:
    """Memory of an implicit gradient over the number of steps, and time of backward passes."""
    layer = copy.deepcopy(layer)

    def step() -> None:
        layer.zero_grad()
        layer(x).square().sum().backward()

    layer.differentiation = equipool.Implicit()
    peaks, times = [], {}
    for layer.steps in (5, 50):
        step()
        peaks.append(peak_bytes_of(step, x.device))
    for name, way in (("implicit", equipool.Implicit()), ("unrolled", equipool.Unrolled())):
        layer.differentiation = way
        times[name] = milliseconds(step, x.device)
    return {"part": "backward", "sets": len(x), "short_bytes": peaks[0], "long_bytes": peaks[1],
            **times}  # fmt: skip


def measure(state: str, size: int, chosen: Any) -> Iterator[dict[str, Any]]:
    """All rows of a layer."""
    layer = make_layer(state, size, chosen.training_steps, chosen.device)
    x, _ = draw(chosen.sets, SET_SIZE, torch.Generator().manual_seed(5))
    x, row = x.unsqueeze(-1).to(chosen.device), {"state": state, "size": size, "sets": chosen.sets}
    yield from quality(copy.deepcopy(layer), row, x)
    if size <= 64:
        yield from solvers(copy.deepcopy(layer), row, x)
    if state == "convex":
        yield row | stopping(copy.deepcopy(layer), x)
        yield row | backward(layer, x)


def main() -> None:
    chosen = arguments(__doc__, sets=16, training_steps=200)
    head, rows = header(chosen.device), []
    for size in SIZES:
        for state in STATES:
            for row in measure(state, size, chosen):
                rows.append(row)
                print(row, flush=True)
                write(chosen.out, head, rows)


if __name__ == "__main__":
    main()
