"""Accuracy and cost of each differentiation method, and the speed of each solver.

    python benchmarks/gradients.py --device cpu --out benchmarks/records/NAME.jsonl

It takes some minutes on a CPU. On a batch of your own, `equipool.compare_gradients` does the same.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
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
PARTS = ("quality", "solvers", "stopping", "backward")
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
    layer: EquilibriumAggregation, row: dict[str, Any], x: torch.Tensor, numbers: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Each method beside the exact gradient, with its time and memory."""
    for steps in numbers:
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
    fixed.steps = int(halfway.steps.max())
    steps = halfway.steps.double()
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


def main() -> None:
    chosen = arguments(__doc__, part=PARTS, sets=16, training_steps=200, quick=False)
    head, rows, device = header(chosen.device), [], chosen.device
    sizes, training, numbers = (8, 64, 300), chosen.training_steps, NUMBERS
    if chosen.quick:
        sizes, training, numbers = (2,), 2, (2,)
    x, _ = draw(chosen.sets, SET_SIZE, torch.Generator().manual_seed(5))
    x = x.unsqueeze(-1).to(device)
    for size in sizes:
        for state in STATES:
            layer = make_layer(state, size, training, device)
            row = {"state": state, "size": size, "sets": chosen.sets}
            measured: list[Iterator[dict[str, Any]]] = []
            if "quality" in chosen.part:
                measured.append(quality(copy.deepcopy(layer), row, x, numbers))
            if "solvers" in chosen.part and size <= 64:
                measured.append(solvers(copy.deepcopy(layer), row, x))
            if state == "convex" and "stopping" in chosen.part:
                measured.append(iter([row | stopping(copy.deepcopy(layer), x)]))
            if state == "convex" and "backward" in chosen.part:
                measured.append(iter([row | backward(layer, x)]))
            for found in measured:
                for line in found:
                    rows.append(line)
                    print(line, flush=True)
                    write(chosen.out, head, rows)


if __name__ == "__main__":
    main()
