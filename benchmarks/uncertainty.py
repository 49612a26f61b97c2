"""Coverage of the intervals of `equipool.laplace`, and the picture of the page on uncertainty.

    python benchmarks/uncertainty.py --out benchmarks/records/NAME.jsonl

Trains a neural process on sines and a network on the median, about ten minutes on one core.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from medians import MedianNetwork, draw, train
from recording import arguments, header, write
from torch import Tensor, nn

import equipool
from equipool.recipes import AUX_WEIGHT

SETS = 2000  # for validation, and as many for the test
LEVEL, NOISE = 0.9, 0.1  # of the intervals; standard deviation of the observations
MOST, TARGETS = 12, 16  # observations per function, at most, and points to predict
SHOWN = (2, 4, 10)  # observations in the picture
ELEMENTS, CHANNELS, MEDIAN_SIZE = 16, 8, 32


def draw_sines(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Functions a sin(w t + p) with noise: observations `[B, 12, 2]`, a mask of the 1 to 12 that
    are given, and 16 further points `[B, 16]` with their values."""

    def uniform(size: int, low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, size, generator=generator)

    amplitude, rate, phase = uniform(1, 0.5, 1.5), uniform(1, 1.0, 2.0), uniform(1, 0, 2 * math.pi)
    t = uniform(MOST + TARGETS, -2.0, 2.0)
    f = amplitude * torch.sin(rate * t + phase)
    f = f + NOISE * torch.randn(f.shape, generator=generator)
    mask = torch.arange(MOST) < torch.randint(1, MOST + 1, (count, 1), generator=generator)
    return torch.stack([t, f], dim=-1)[:, :MOST], mask, t[:, MOST:], f[:, MOST:]


def make_layer() -> equipool.EquilibriumAggregation:
    potential = equipool.ResNetPotential(ELEMENTS, CHANNELS, hidden=(64, 64, 16))
    return equipool.EquilibriumAggregation(
        ELEMENTS, CHANNELS, potential=potential, **equipool.converging()
    )


class NeuralProcess(nn.Module):
    """Observations `x [B, N, 2]` of functions, pooled into y, and read at points `t [B, M]`."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Sequential(nn.Linear(2, 64), nn.GELU(), nn.Linear(64, ELEMENTS))
        self.layer = make_layer()
        self.head = nn.Sequential(
            nn.Linear(CHANNELS + 1, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1)
        )

    def forward(self, x: Tensor, mask: Tensor, t: Tensor) -> Tensor:
        return self.predict(self.layer(self.embedding(x), mask=mask), t)

    def predict(self, y: Tensor, t: Tensor) -> Tensor:
        rows = y.unsqueeze(-2).expand(*t.shape, y.shape[-1])
        return self.head(torch.cat([rows, t.unsqueeze(-1)], dim=-1)).squeeze(-1)


@dataclass(frozen=True)
class Sets:
    """Held-out sets: embedded elements, which of them are real, a head and its targets."""

    x: Tensor
    mask: Tensor
    head: Callable[[Tensor], Tensor]
    target: Tensor


@torch.no_grad()
def sines(network: NeuralProcess, seed: int) -> Sets:
    x, mask, t, target = draw_sines(SETS, torch.Generator().manual_seed(seed))
    return Sets(network.embedding(x), mask, lambda y: network.predict(y, t), target)


@torch.no_grad()
def numbers(network: MedianNetwork, seed: int) -> Sets:
    x, median = draw(SETS, MEDIAN_SIZE, torch.Generator().manual_seed(seed))
    mask = torch.ones_like(x, dtype=torch.bool)
    x = network.embedding(x.unsqueeze(-1))
    return Sets(x, mask, lambda y: network.head(y).squeeze(-1), median)


def measure(network: Any, hold_out: Callable[[Any, int], Sets], noise: float) -> dict[str, Any]:
    """Fit the temperature on validation sets and measure coverage on test sets. `constant_width` is
    the half width that covers as many validation targets if it is the same for all."""
    validation, test = hold_out(network, 1), hold_out(network, 2)

    def posterior(sets: Sets, temperature: float = 1.0) -> equipool.Laplace:
        return equipool.laplace(network.layer, sets.x, mask=sets.mask, temperature=temperature)

    def covered(found: equipool.Laplace) -> Tensor:
        interval = found.interval(test.head, LEVEL, noise=noise)
        inside = (interval.lower <= test.target) & (test.target <= interval.upper)
        return torch.where(interval.lower.isnan(), torch.nan, inside.double())

    before = posterior(validation)
    temperature = before.fit_temperature(validation.head, validation.target, LEVEL, noise=noise)
    errors = validation.target - before.interval(validation.head).centre
    found = posterior(test, temperature)
    interval = found.interval(test.head, LEVEL, noise=noise)
    widths, inside, sizes = (interval.upper - interval.lower) / 2, covered(found), test.mask.sum(-1)
    return {
        "level": LEVEL, "sets": SETS, "noise": noise, "temperature": temperature,
        "definite": found.definite.double().mean().item(),
        "converged": found.near_minimum.double().mean().item(),
        "coverage": inside.nanmean().item(),
        "coverage_without_temperature": covered(posterior(test)).nanmean().item(),
        "half_width": widths.nanmean().item(),
        "constant_width": errors.abs().flatten().nanquantile(LEVEL).item(),
        "by_size": {
            size: {"coverage": inside[sizes == size].nanmean().item(),
                   "half_width": widths[sizes == size].nanmean().item()}
            for size in sizes.unique().tolist()
        },
    }  # fmt: skip


def draw_picture(network: NeuralProcess, temperature: float) -> None:
    """One held-out function, from a few observations to many."""
    sys.path.append(str(Path(__file__).parents[1] / "docs" / "figures"))
    from drawing import BLUE, GREY, ORANGE, picture

    generator = torch.Generator().manual_seed(3)
    t = torch.linspace(-2, 2, 101)
    at = 4 * torch.rand(max(SHOWN), generator=generator) - 2
    seen = 1.1 * torch.sin(1.6 * at + 0.7) + NOISE * torch.randn(at.shape, generator=generator)
    with picture("uncertainty-sines", 1, len(SHOWN), (10, 3), sharey=True) as axes:
        for ax, count in zip(axes[0], SHOWN, strict=True):
            with torch.no_grad():
                x = network.embedding(torch.stack([at, seen], dim=-1)[:count])
            found = equipool.laplace(network.layer, x, temperature=temperature)
            interval = found.interval(
                lambda y: network.predict(y, t.unsqueeze(0)), LEVEL, noise=NOISE
            )
            centre, lower, upper = (part[0].detach() for part in interval)
            ax.fill_between(t, lower, upper, color=BLUE, alpha=0.2, lw=0, label="90 % interval")
            ax.plot(t, 1.1 * torch.sin(1.6 * t + 0.7), color=GREY, lw=1, label="the function")
            ax.plot(t, centre, color=BLUE, label="prediction")
            ax.plot(at[:count], seen[:count], "o", color=ORANGE, ms=4, label="observations")
            ax.set(title=f"{count} observations", xlabel="$t$", ylim=(-2, 2))
        axes[0, -1].legend(loc="upper left", fontsize=7)


def main() -> None:
    chosen = arguments(__doc__, sines_steps=2500, median_steps=1500, picture=False)
    torch.manual_seed(0)
    process = NeuralProcess()
    train(process, lambda generator: draw_sines(64, generator), steps=chosen.sines_steps,
          rate=3e-3, aux_weight=AUX_WEIGHT, warm_up=chosen.sines_steps // 20)  # fmt: skip
    median = MedianNetwork(make_layer(), ELEMENTS, CHANNELS)
    train(median, lambda generator: draw(32, MEDIAN_SIZE, generator), steps=chosen.median_steps,
          rate=1e-2, aux_weight=AUX_WEIGHT, warm_up=chosen.median_steps // 20)  # fmt: skip
    networks = {
        "sines": measure(process.eval(), sines, NOISE),
        "median": measure(median.eval(), numbers, 0.0),
    }
    print(networks)
    write(chosen.out, header(chosen.device) | {"networks": networks})
    if chosen.picture:
        draw_picture(process, networks["sines"]["temperature"])


if __name__ == "__main__":
    main()
