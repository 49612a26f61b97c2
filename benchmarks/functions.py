"""Nine functions of a set of 50 numbers, learned by every pooling in the same CPU time.

    python benchmarks/functions.py --seconds 2 --seeds 1 --poolings location pna   # three minutes
    python benchmarks/functions.py --out benchmarks/records/cpu-functions.jsonl    # two hours

Encoder, head, optimiser and schedule are the same for all poolings. Errors are root mean squares
over new sets of 50, 500 and 5,000 numbers, in % of the target's standard deviation at 50. Run it on
one thread: OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from recording import arguments, header, write
from torch import Tensor, nn

from equipool import EquilibriumAggregation, LocationPooling, ResNetPotential
from equipool.baselines import aggregation_from_name

SIZE, BATCH, RATE, WARM_UP, CHANNELS, OUTPUTS = 50, 32, 5e-3, 50, 8, 24
TEST_SIZES = {50: 4000, 500: 400, 5000: 40}  # numbers in a set, and how many sets
PAIRS = 5_000_000  # of elements that an evaluation may compare at once
POOLINGS = (
    "location", "location without weights", "mean", "max", "sum", "attention", "softmax", "pna",
    "quantile", "set-transformer", "equilibrium",
)  # fmt: skip


def numbers(sets: int, size: int, generator: torch.Generator) -> Tensor:
    """Sets `[sets, size]`, each uniform, of squared or of shifted normal numbers."""
    kind = torch.randint(3, (sets, 1), generator=generator)
    uniform = torch.rand(sets, size, generator=generator)
    normal = torch.randn(sets, size, generator=generator)
    others = torch.where(kind == 1, 0.1 * normal.square(), 0.5 + 0.4 * normal)
    return torch.where(kind == 0, uniform, others)


def draw(function: str, sets: int, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sets of numbers, and the function of each."""
    x = numbers(sets, size, generator)
    if function != OUTLIERS:
        return x, FUNCTIONS[function](x)
    share = 0.3 * torch.rand(sets, 1, generator=generator)
    wrong = torch.rand(sets, size, generator=generator) < share
    sign = torch.where(torch.rand(sets, size, generator=generator) < 0.5, -1.0, 1.0)
    outliers = sign * (5 + 45 * torch.rand(sets, size, generator=generator))
    mean = x.masked_fill(wrong, 0).sum(1) / (~wrong).sum(1).clamp(min=1)
    return torch.where(wrong, outliers, x) / 20, mean


def quantiles(x: Tensor, *levels: float) -> Tensor:
    return x.quantile(torch.tensor(levels), dim=1)


OUTLIERS = "mean without outliers"
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda x: x.mean(1),
    "deviation": lambda x: x.std(1),
    "maximum": lambda x: x.amax(1),
    "median": lambda x: x.median(1).values,
    "90 % quantile": lambda x: quantiles(x, 0.9)[0],
    "interquartile range": lambda x: quantiles(x, 0.25, 0.75).diff(dim=0)[0],
    "midhinge": lambda x: quantiles(x, 0.25, 0.75).mean(0),
    "sum above 1": lambda x: (x - 1).relu().sum(1) / 10,
    OUTLIERS: lambda x: x.mean(1),
}


class Network(nn.Module):
    """Encodes each number, pools, and reads the function from the result."""

    def __init__(self, pooling: str) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, CHANNELS))
        self.linear = nn.Linear(1, CHANNELS)
        self.pool = make_pooling(pooling)
        self.head = nn.Sequential(nn.Linear(OUTPUTS, 64), nn.ReLU(), nn.Linear(64, 1))
        self.skip = nn.Linear(OUTPUTS, 1)

    def forward(self, x: Tensor) -> Tensor:
        elements = x.unsqueeze(-1)
        pooled = self.pool(self.hidden(elements) + self.linear(elements))
        return (self.head(pooled) + self.skip(pooled)).squeeze(-1)


def make_pooling(name: str) -> nn.Module:
    if name.startswith("location"):  # all sets have one size in training
        heads = CHANNELS if name == "location" else 0
        return LocationPooling(CHANNELS, OUTPUTS, heads=heads, scalers=False)
    if name == "equilibrium":  # the paper's potential, at a size that trains in seconds
        potential = ResNetPotential(CHANNELS, OUTPUTS, hidden=(64, 64, 8))
        return EquilibriumAggregation(CHANNELS, OUTPUTS, potential=potential, steps=5)
    return aggregation_from_name(name, CHANNELS, OUTPUTS, set_size=SIZE)


def train(function: str, pooling: str, seconds: float, seed: int) -> tuple[nn.Module, int]:
    """A network trained for so many CPU seconds, and its number of steps."""
    torch.manual_seed(seed)
    network = Network(pooling)
    generator = torch.Generator().manual_seed(seed + 1)
    mean, deviation = target_scale(function)
    optimizer = torch.optim.Adam(network.parameters())
    network(draw(function, BATCH, SIZE, generator)[0]).sum().backward()  # compiles what needs it
    steps, begin = 0, time.process_time()
    while (spent := (time.process_time() - begin) / seconds) < 1:
        for group in optimizer.param_groups:
            warm = min(1, (steps + 1) / WARM_UP)
            group["lr"] = RATE * warm * (1 + math.cos(math.pi * spent)) / 2
        x, y = draw(function, BATCH, SIZE, generator)
        loss = (network(x) - (y - mean) / deviation).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        steps += 1
    return network.eval(), steps


def target_scale(function: str) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the target over sets of 50."""
    y = draw(function, 4000, SIZE, torch.Generator().manual_seed(10**6))[1]
    return y.mean(), y.std()


@torch.no_grad()
def error(network: nn.Module, function: str, size: int) -> float:
    """Root mean squared error on new sets, in % of the target's standard deviation."""
    mean, deviation = target_scale(function)
    x, y = draw(function, TEST_SIZES[size], size, torch.Generator().manual_seed(10**6 + size))
    parts = x.split(max(PAIRS // size**2, 1))
    found = torch.cat([network(part) for part in parts])
    return 100 * float((found - (y - mean) / deviation).square().mean().sqrt())


def main() -> None:
    options: dict[str, Any] = {"poolings": POOLINGS, "functions": tuple(FUNCTIONS)}
    chosen = arguments(__doc__, seconds=15.0, seeds=3, **options)
    rows = []
    for seed in range(chosen.seeds):
        for function in chosen.functions:
            for pooling in chosen.poolings:
                network, steps = train(function, pooling, chosen.seconds, seed)
                errors = {str(size): error(network, function, size) for size in TEST_SIZES}
                row = {"function": function, "pooling": pooling, "seed": seed, "steps": steps}
                rows.append({**row, "errors": errors})
                shown = "  ".join(f"{size}: {value:8.3g}" for size, value in errors.items())
                print(f"{function:22} {pooling:25} {steps:6} steps  error % at {shown}", flush=True)
                write(chosen.out, header(chosen.device), rows)
    if not rows:
        sys.exit("nothing to measure")


if __name__ == "__main__":
    main()
