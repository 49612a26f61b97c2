"""Time of the convex equilibrium and of exact order statistics, beside PyTorch Geometric's.

    OMP_NUM_THREADS=1 python benchmarks/location.py --device cpu     # two minutes on one core

Forward and backward of the pooling alone, except for exact statistics, which are timed without
gradients. The four statistics are mean, deviation, minimum and
maximum. All rows of a case are measured side by side in one run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from recording import arguments, header, milliseconds, write
from torch import Tensor
from torch_geometric.nn.aggr import MedianAggregation, MultiAggregation, QuantileAggregation

from equipool import pyg
from equipool.ops.location import locate

LEVELS = [0.1, 0.5, 0.9]
WIDTHS = {"width 1": (1.0, 4.0), "width 0.1": (0.1, 2.0), "width 0.05": (0.05, 2.0),
          "quantiles, width 0.02": (0.02, 2.2)}  # fmt: skip
BATCHES = {"256 sets of 13-39, 300 channels": (256, 13, 40, 300),
           "32 sets of 1,000-2,999, 64 channels": (32, 1000, 3000, 64)}  # fmt: skip


def batch(sets: int, least: int, most: int, channels: int, device: torch.device) -> list[Tensor]:
    """Elements, their sets and the sets' counts."""
    generator = torch.Generator().manual_seed(sets)
    counts = torch.randint(least, most, (sets,), generator=generator)
    x = torch.randn(int(counts.sum()), channels, generator=generator)
    return [t.to(device) for t in (x, torch.arange(sets).repeat_interleave(counts), counts)]


def training(pool: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], None]:
    x = x.clone().requires_grad_()

    def step() -> None:
        x.grad = None
        pool(x).square().sum().backward()

    return step


def locations(
    index: Tensor, counts: Tensor, width: float, logit: float, channels: int
) -> Callable[[Tensor], Tensor]:
    """Three asymmetries of each channel, of one width."""
    tau = torch.linspace(-logit, logit, 3, device=index.device).sigmoid().unsqueeze(-1)
    tau = tau.repeat(1, channels).requires_grad_()
    delta = torch.full_like(tau, width).requires_grad_()
    return lambda x: locate(x, index, counts, tau, delta).y


def steps(x: Tensor, index: Tensor, counts: Tensor) -> dict[str, Callable[[], Any]]:
    size = counts.shape[0]
    four = MultiAggregation(["mean", "std", "min", "max"])
    three, own_three = QuantileAggregation(LEVELS), pyg.QuantileAggregation(LEVELS)
    median, own_median = MedianAggregation(), pyg.MedianAggregation()
    found = {
        "PyG: four statistics": training(lambda x: four(x, index, dim_size=size), x),
        "PyG: three quantiles": training(lambda x: three(x, index, dim_size=size), x),
    }  # fmt: skip
    for name, (width, logit) in WIDTHS.items():
        found[name] = training(locations(index, counts, width, logit, x.shape[1]), x)
    exact = {"PyG: median, exact": median, "median, exact": own_median,
             "PyG: three quantiles, exact": three, "three quantiles, exact": own_three}  # fmt: skip
    return found | {
        name: lambda pool=pool: pool(x, index, dim_size=size) for name, pool in exact.items()
    }


def main() -> None:
    chosen = arguments(__doc__, seconds=3.0, batches=tuple(BATCHES))
    rows = []
    for name in chosen.batches:
        for path, step in steps(*batch(*BATCHES[name], chosen.device)).items():
            times = milliseconds(step, chosen.device, chosen.seconds)
            rows.append({"batch": name, "path": path, "milliseconds": times})
            print(f"{name:36} {path:40} {times['median']:9.2f} ms", flush=True)
    write(chosen.out, header(chosen.device), rows)


if __name__ == "__main__":
    main()
