"""Trains two small networks to compute the median of 100 numbers: `python examples/demo.py`.

One pools with the layer, the other with a sum; nothing else differs. It takes a minute, prints a
table, and writes learning-curves.png and explorer.html, a page where you can drag points and see
their energy.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from shutil import copyfile

import matplotlib

matplotlib.use("agg")

import torch
from matplotlib import pyplot as plt
from torch import Tensor, nn

import equipool
from equipool.explore.page import PAGE

SET_SIZE, CHANNELS, BATCH, TEST_SETS = 100, 8, 32, 4000


def draw_sets(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sets of numbers `[count, 100, 1]`, each from a uniform or a skewed distribution of its own,
    and their medians `[count]`."""
    shape = (count, SET_SIZE)
    uniform = torch.rand(shape, generator=generator)
    skewed = torch.rand(shape, generator=generator) ** 3
    chosen = torch.rand(count, 1, generator=generator) < 0.5
    width = 0.5 + torch.rand(count, 1, generator=generator)
    x = width * torch.where(chosen, uniform, skewed)
    return x.unsqueeze(-1), x.median(dim=1).values


class MedianNetwork(nn.Module):
    """Embeds each number, pools the embeddings, and reads the median from the result."""

    def __init__(self, pool: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(1, 64), nn.GELU(), nn.Linear(64, CHANNELS))
        self.pool = pool
        self.read = nn.Sequential(nn.Linear(CHANNELS, 64), nn.GELU(), nn.Linear(64, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.pool(self.embed(x))).squeeze(-1)


def equilibrium() -> nn.Module:
    """The layer with three short steps of its search."""
    return equipool.EquilibriumAggregation(
        CHANNELS,
        CHANNELS,
        potential=equipool.ResNetPotential(CHANNELS, CHANNELS, hidden=(64, 64, 8)),
        solver=equipool.Nesterov(0.05, momentum=0.5),
        steps=3,
    )


def sum_pooling(x: Tensor) -> Tensor:
    return x.sum(dim=1) / SET_SIZE


def train(pool: Callable[[Tensor], Tensor], seconds: float, seed: int) -> tuple[list[float], float]:
    """The loss of every training step, and the mean squared error on new sets at the end."""
    torch.manual_seed(seed)
    network, generator = MedianNetwork(pool), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    losses: list[float] = []
    begin = time.perf_counter()
    while (spent := time.perf_counter() - begin) < seconds:
        for group in optimizer.param_groups:  # falls to zero by the end, however fast the machine
            group["lr"] = 3e-3 * (1 - spent / seconds)
        x, median = draw_sets(BATCH, generator)
        loss = (network(x) - median).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    x, median = draw_sets(TEST_SETS, torch.Generator().manual_seed(10**6))
    with torch.no_grad():
        return losses, (network(x) - median).square().mean().item()


def draw_curves(curves: dict[str, list[float]], seconds: float, file: Path) -> None:
    """Smoothed training error over steps and over seconds."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), sharey=True, layout="constrained")
    for name, losses in curves.items():
        parts = torch.tensor(losses).tensor_split(min(60, len(losses)))
        errors = [part.mean().item() for part in parts]
        ends = torch.tensor([len(part) for part in parts]).cumsum(0)
        axes[0].plot(ends, errors, label=name)
        axes[1].plot(ends * seconds / len(losses), errors, label=name)
    for ax, label in zip(axes, ("training steps", "seconds"), strict=True):
        ax.set(xlabel=label, xscale="log", yscale="log")
    axes[0].set_ylabel("mean squared error")
    axes[1].legend()
    figure.savefig(file)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("demo-output"))
    parser.add_argument("--seconds", type=float, default=20.0, help="training time of each network")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    chosen.out.mkdir(parents=True, exist_ok=True)
    print(f"Training two networks for {chosen.seconds:g} seconds each.\n")
    print(f"{'pooling':<12} {'test error':>10} {'steps':>8} {'ms per step':>12}")
    curves = {}
    for name, make in (("equilibrium", equilibrium), ("sum", lambda: sum_pooling)):
        torch.manual_seed(chosen.seed)
        curves[name], error = train(make(), chosen.seconds, chosen.seed)
        steps = len(curves[name])
        print(f"{name:<12} {error:>10.1e} {steps:>8,} {1000 * chosen.seconds / steps:>12.1f}")
    print(
        "\nA step of the layer costs more, so in a short training a sum may be ahead.\n"
        "The layer pulls ahead later: after a million steps its error is a thousandth\n"
        "of the sum's (docs/reproduction/median.md)."
    )
    draw_curves(curves, chosen.seconds, chosen.out / "learning-curves.png")
    copyfile(PAGE, chosen.out / "explorer.html")
    print(f"\nOpen {chosen.out / 'explorer.html'} to drag points and see their energy.")


if __name__ == "__main__":
    main()
