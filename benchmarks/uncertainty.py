"""Measure the coverage of intervals and draw the picture of the page on uncertainty.

    python docs/figures/neural_process.py

trains a neural process on sines and a network on the median, about ten minutes on one core, and
writes `benchmarks/records/cpu-uncertainty.json` and the picture. `FOLDER` as an argument writes
both there instead.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import torch
from equipool.bench.record import git_commit
from idea import BLUE, GREY, ORANGE, STYLE
from torch import Tensor, nn

import equipool
from equipool.environment import hardware, now, versions
from equipool.experiments.median import MedianTask
from equipool.experiments.median.data import medians, sample_sets
from equipool.experiments.presets import RECIPES
from equipool.training import Batch, Loss, Shard, Task, TrainingConfig, fit

ROOT = Path(__file__).parents[2]
RECORD, PICTURE = "cpu-uncertainty.json", "uncertainty-sines.svg"
STEPS = {"sines": 2500, "median": 1500}
SETS = 2000  # for validation, and as many for the test
LEVEL = 0.9
NOISE = 0.1  # standard deviation of the observations
MOST, TARGETS = 12, 16  # observations per function, at most, and points to predict
SHOWN = (2, 4, 10)  # observations in the picture


def draw_sines(shape: tuple[int, ...], generator: torch.Generator) -> Batch:
    """Functions a sin(w t + p), each observed at 1 to 12 points between -2 and 2 with noise, and
    observed again at 16 target points."""

    def uniform(size: int, low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(*shape, size, generator=generator)

    amplitude, rate = uniform(1, 0.5, 1.5), uniform(1, 1.0, 2.0)
    phase = uniform(1, 0.0, 2 * math.pi)
    t = uniform(MOST + TARGETS, -2.0, 2.0)
    f = amplitude * torch.sin(rate * t + phase)
    f = f + NOISE * torch.randn(f.shape, generator=generator)
    count = torch.randint(1, MOST + 1, (*shape, 1), generator=generator)
    return {
        "x": torch.stack([t, f], dim=-1)[..., :MOST, :],
        "mask": torch.arange(MOST) < count,
        "t": t[..., MOST:],
        "target": f[..., MOST:],
    }


class NeuralProcess(nn.Module):
    """Observations `x [B, N, 2]` of functions, pooled into y, and read at points `t [B, M]`."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Sequential(nn.Linear(2, 64), nn.GELU(), nn.Linear(64, 16))
        potential = equipool.ResNetPotential(16, channels, hidden=(64, 64, 16))
        self.aggregation = equipool.EquilibriumAggregation(
            16, channels, potential=potential, **equipool.converging()
        )
        self.head = nn.Sequential(
            nn.Linear(channels + 1, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1)
        )

    def forward(self, x: Tensor, mask: Tensor, t: Tensor) -> Tensor:
        return self.predict(self.aggregation(self.embedding(x), mask=mask), t)

    def predict(self, y: Tensor, t: Tensor) -> Tensor:
        """`y [B, K]`, `t [B, M]` -> `[B, M]`."""
        rows = y.unsqueeze(-2).expand(*t.shape, y.shape[-1])
        return self.head(torch.cat([rows, t.unsqueeze(-1)], dim=-1)).squeeze(-1)


@dataclass(frozen=True)
class SinesTask(Task):
    """Predict a function at other points from a few noisy observations."""

    name: ClassVar[str] = "sines"
    monitor: ClassVar[str] = "mse"

    batch_size: int = 64
    seed: int = 0

    def network(self) -> NeuralProcess:
        return NeuralProcess()

    def batches(self, first_step: int, num_steps: int, device: torch.device, shard: Shard) -> Batch:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + first_step)
        batch = draw_sines((num_steps, self.batch_size), generator)
        return {name: shard.part(part, 1).to(device) for name, part in batch.items()}

    def loss(self, network: nn.Module, batch: Batch) -> Loss:
        found = network(batch["x"], batch["mask"], batch["t"])
        return Loss((found - batch["target"]).square().mean())

    def evaluate(self, network: nn.Module, device: torch.device) -> dict[str, float]:
        batch = draw_sines((500,), torch.Generator().manual_seed(10**6))
        return {"mse": self.loss(network, batch).value.item()}


def median_task() -> MedianTask:
    """The quick experiment, trained so that the search converges."""
    quick = asdict(MedianTask.quick())
    recipe = {name: value for name, value in RECIPES["converging"].items() if name in quick}
    return MedianTask(**quick | recipe)


@dataclass(frozen=True)
class Sets:
    """Held-out sets: elements, which of them are real, a head and its targets."""

    x: Tensor
    mask: Tensor
    head: Callable[[Tensor], Tensor]
    target: Tensor


def sines(network: nn.Module, seed: int) -> Sets:
    assert isinstance(network, NeuralProcess)
    batch = draw_sines((SETS,), torch.Generator().manual_seed(seed))
    with torch.no_grad():
        x = network.embedding(batch["x"])
    return Sets(x, batch["mask"], lambda y: network.predict(y, batch["t"]), batch["target"])


def numbers(network: nn.Module, seed: int) -> Sets:
    x, _ = sample_sets((SETS,), median_task().set_size, torch.Generator().manual_seed(seed))
    everything = torch.ones_like(x, dtype=torch.bool)
    return Sets(x.unsqueeze(-1), everything, network.predict, medians(x))


def posterior(network: nn.Module, sets: Sets, temperature: float = 1.0) -> equipool.Laplace:
    layer = network.aggregation
    assert isinstance(layer, equipool.EquilibriumAggregation)
    return equipool.laplace(layer, sets.x, mask=sets.mask, temperature=temperature)


def covered(found: equipool.Laplace, sets: Sets, noise: float) -> Tensor:
    """Whether each target is in its interval; NaN without an interval."""
    interval = found.interval(sets.head, LEVEL, noise=noise)
    inside = (interval.lower <= sets.target) & (sets.target <= interval.upper)
    return torch.where(interval.lower.isnan(), torch.nan, inside.double())


def measure(network: nn.Module, hold_out: Callable[[nn.Module, int], Sets], noise: float) -> Any:
    """Fit the temperature on validation sets and measure coverage on test sets. `constant_width` is
    the half width that covers as many validation targets if it is the same for all."""
    validation, test = hold_out(network, 1), hold_out(network, 2)
    before = posterior(network, validation)
    temperature = before.fit_temperature(validation.head, validation.target, LEVEL, noise=noise)
    errors = validation.target - before.interval(validation.head).centre
    found, plain = posterior(network, test, temperature), posterior(network, test)
    inside, sizes = covered(found, test, noise), test.mask.sum(-1)
    interval = found.interval(test.head, LEVEL, noise=noise)
    half_widths = (interval.upper - interval.lower) / 2
    return {
        "level": LEVEL,
        "sets": SETS,
        "noise": noise,
        "temperature": temperature,
        "definite": found.definite.double().mean().item(),
        "converged": found.near_minimum.double().mean().item(),
        "coverage": inside.nanmean().item(),
        "coverage_without_temperature": covered(plain, test, noise).nanmean().item(),
        "half_width": half_widths.nanmean().item(),
        "constant_width": errors.abs().flatten().nanquantile(LEVEL).item(),
        "rmse": (interval.centre - test.target).square().nanmean().sqrt().item(),
        "by_size": {
            size: {
                "coverage": inside[sizes == size].nanmean().item(),
                "half_width": half_widths[sizes == size].nanmean().item(),
            }
            for size in sizes.unique().tolist()
        },
    }


def draw_picture(network: NeuralProcess, temperature: float, seed: int = 3) -> None:
    """One held-out function, from a few observations to many."""
    generator = torch.Generator().manual_seed(seed)
    t = torch.linspace(-2, 2, 101)
    curve = 1.1 * torch.sin(1.6 * t + 0.7)
    at = 4 * torch.rand(max(SHOWN), generator=generator) - 2
    seen = 1.1 * torch.sin(1.6 * at + 0.7) + NOISE * torch.randn(at.shape, generator=generator)
    _, axes = plt.subplots(1, len(SHOWN), figsize=(10, 3), sharey=True)
    for axis, count in zip(axes, SHOWN, strict=True):
        with torch.no_grad():
            x = network.embedding(torch.stack([at, seen], dim=-1)[:count])
        found = equipool.laplace(network.aggregation, x, temperature=temperature)
        interval = found.interval(lambda y: network.predict(y, t.unsqueeze(0)), LEVEL, noise=NOISE)
        centre, lower, upper = (part[0] for part in interval)
        axis.fill_between(t, lower, upper, color=BLUE, alpha=0.2, lw=0, label="90 % interval")
        axis.plot(t, curve, color=GREY, lw=1, label="the function")
        axis.plot(t, centre, color=BLUE, label="prediction")
        axis.plot(at[:count], seen[:count], "o", color=ORANGE, ms=4, label="observations")
        axis.set(title=f"{count} observations", xlabel="$t$", ylim=(-2, 2))
    axes[-1].legend(loc="upper left", fontsize=7)


def main(arguments: list[str]) -> None:
    records = figures = Path(arguments[0]) if arguments else None
    records = records or ROOT / "benchmarks" / "records"
    figures = figures or ROOT / "docs" / "figures"
    tasks = {"sines": (SinesTask(), sines, NOISE), "median": (median_task(), numbers, 0.0)}
    measured = {}
    for name, (task, hold_out, noise) in tasks.items():
        rate = 3e-3 if name == "sines" else 1e-2
        config = TrainingConfig(
            STEPS[name], learning_rate=rate, schedule="cosine", warmup_steps=STEPS[name] // 20,
            guard_factor=None, chunk=50, log_every=100, evaluate_every=STEPS[name],
        )  # fmt: skip
        fitted = fit(task, config, "cpu", progress=True)
        measured[name] = {
            "task": asdict(task),
            "training": asdict(config),
            "training_seconds": fitted.record.training_seconds,
            **measure(fitted.network, hold_out, noise),
        }
        print(name, json.dumps(measured[name], indent=1))
        if isinstance(fitted.network, NeuralProcess):
            with plt.rc_context(STYLE):
                draw_picture(fitted.network, measured[name]["temperature"])
                plt.savefig(figures / PICTURE, metadata={"Date": None})
                plt.close()
    record = {
        "command": "python docs/figures/neural_process.py",
        "date": now(),
        "commit": git_commit(),
        "versions": versions(),
        "hardware": hardware(torch.device("cpu")),
        "networks": measured,
        "format": 1,
    }
    (records / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
