"""What an edit of live sets costs against a solve from scratch, and whether edits add up errors.

    python benchmarks/streaming.py --out benchmarks/records/NAME.jsonl

Takes a few minutes on one core. Steps and distances do not depend on the machine's load; times do.
"""

from __future__ import annotations

from functools import cache
from time import perf_counter
from typing import Any

import torch
from recording import arguments, header, summarize, write
from torch import Tensor, nn

import equipool
from equipool import EquilibriumAggregation, GradientDescent, ToTolerance
from equipool.live import LiveSets

CHANNELS, MAX_STEPS, TRAINING_STEPS = 8, 2000, 250
ELSEWHERE = 0.01  # distance to a solve from scratch beyond which a set is in another minimum
CASES = (
    (torch.float32, 1e-3), (torch.float32, 1e-4),
    (torch.float64, 1e-5), (torch.float64, 1e-6),
)  # fmt: skip


@cache
@torch.enable_grad()
def trained_weights() -> dict[str, Tensor]:
    """A small network that learns the median and the deviation of each set, with `converging`."""
    torch.manual_seed(0)
    layer = untrained()
    head = torch.nn.Linear(layer.out_channels, 2)
    parameters = [*layer.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, TRAINING_STEPS)
    for _ in range(TRAINING_STEPS):
        x = draw(8 * 50, torch.float32).view(8, 50, CHANNELS)
        x = x * (0.5 + torch.rand(8, 1, 1)) + torch.randn(8, 1, 1)
        target = torch.stack([x[..., 0].median(1).values, x[..., 1].std(1)], -1)
        with equipool.record(diagnostics=False) as solutions:
            loss = (head(layer(x)) - target).square().mean() + 1e-2 * solutions.aux_loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
    return layer.state_dict()


class Huber(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.huber_loss(y, x, reduction="none").sum(-1)


def untrained() -> EquilibriumAggregation:
    potential = equipool.ResNetPotential(CHANNELS, CHANNELS, hidden=(32, 32, 16))
    return EquilibriumAggregation(CHANNELS, CHANNELS, potential=potential, **equipool.converging())


def make_layer(name: str, dtype: torch.dtype, tolerance: float) -> EquilibriumAggregation:
    """The convex layer, Huber's mean, or the trained one."""
    torch.manual_seed(0)
    if name == "convex":
        potential = equipool.ConvexPotential(CHANNELS, 16, hidden=(32,))
        solver = equipool.StronglyConvexNesterov()
        layer = EquilibriumAggregation(CHANNELS, 16, potential=potential, solver=solver)
    elif name == "huber":
        layer = EquilibriumAggregation(
            CHANNELS, CHANNELS, potential=Huber(), regularizer=0, scaling="mean",
            solver=GradientDescent(1.0, learnable=False),
        )  # fmt: skip
    else:
        layer = untrained()
        layer.load_state_dict(trained_weights())
    layer.steps = ToTolerance(tolerance, MAX_STEPS)
    return layer.to(dtype).eval()


def draw(count: int, dtype: torch.dtype) -> Tensor:
    return 1 + torch.randn(count, CHANNELS, dtype=dtype)


@torch.no_grad()
def replace_one(
    name: str, dtype: torch.dtype, tolerance: float, elements: int, edits: int
) -> dict[str, Any]:
    """Replace random elements of one large set, one at a time, and read the output."""
    layer = make_layer(name, dtype, tolerance)
    torch.manual_seed(1)
    live = LiveSets(layer, draw(elements, dtype))
    _ = live.y
    found: dict[str, list[float]] = {}
    for _ in range(edits):
        begin = perf_counter()
        live.replace(int(torch.randint(elements, ())), draw(1, dtype))
        steps = int(live.solution.num_steps)
        middle = perf_counter()
        scratch = int(layer.solve(live.elements()[0]).num_steps)
        row = {"warm_steps": steps, "scratch_steps": scratch, "ratio": steps / scratch,
               "warm_ms": 1000 * (middle - begin),
               "scratch_ms": 1000 * (perf_counter() - middle)}  # fmt: skip
        for part, value in row.items():
            found.setdefault(part, []).append(value)
    return {"part": "replacements", "layer": name, "dtype": str(dtype), "tolerance": tolerance,
            "elements": elements, "edits": edits,
            **{part: summarize(values) for part, values in found.items()}}  # fmt: skip


@torch.no_grad()
def edit_often(name: str, sets: int, elements: int, edits: int) -> dict[str, Any]:
    """Random edits of random sets with a read after each; distances to a solve from scratch."""
    dtype, tolerance = torch.float64, 1e-5
    layer = make_layer(name, dtype, tolerance)
    torch.manual_seed(2)
    live = LiveSets(layer, draw(elements, dtype), torch.arange(elements) % sets)
    ids = list(range(elements))
    for _ in range(edits):
        kind, place = int(torch.randint(3, ())), int(torch.randint(len(ids), ()))
        if kind == 0:
            ids += live.add(draw(1, dtype), int(torch.randint(sets, ()))).tolist()
        elif kind == 1:
            live.remove(ids.pop(place))
        else:
            live.replace(ids[place], draw(1, dtype))
        _ = live.y
    x, index, _ = live.elements()
    scratch = layer.solve(x, index, dim_size=sets)
    distance, over = (live.y - scratch.y).norm(dim=-1), None
    if scratch.error_bound is not None and live.solution.error_bound is not None:
        over = (distance / (scratch.error_bound + live.solution.error_bound)).max().item()
    return {
        "part": "drifts", "layer": name, "tolerance": tolerance, "sets": sets, "edits": edits,
        "largest_residual": live.solution.residual.max().item(),
        "largest_distance": distance.max().item(), "largest_over_bound": over,
        "median_distance": distance.median().item(),
        "elsewhere": int((distance > ELSEWHERE).sum()),
    }  # fmt: skip


def main() -> None:
    chosen = arguments(__doc__, elements=10_000, edits=10, many_edits=1000)
    torch.set_num_threads(1)
    head, rows = header(torch.device("cpu")), []
    for name in ("convex", "huber", "trained"):
        for dtype, tolerance in CASES:
            rows.append(replace_one(name, dtype, tolerance, chosen.elements, chosen.edits))
            print(rows[-1], flush=True)
        rows.append(edit_often(name, 100, chosen.elements, chosen.many_edits))
        print(rows[-1], flush=True)
        write(chosen.out, head, rows)


if __name__ == "__main__":
    main()
