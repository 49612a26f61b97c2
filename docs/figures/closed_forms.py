"""Pictures of closed-forms.md, drawn with the library."""

from __future__ import annotations

import torch
from drawing import BLUE, GREY, ORANGE, picture
from idea import Penalty, descent, energy_at, path_of
from torch import Tensor, nn

from equipool import LearnedStart, SquaredNorm

SET = torch.tensor([[1.0], [2.0], [3.5], [4.0], [6.5]])


class Sum(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return -(x * y).sum(-1)


class Attention(nn.Module):
    def __init__(self, query: Tensor) -> None:
        super().__init__()
        self.query = query

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.exp(x @ self.query) * (x - y).square().sum(-1)


def pinball(r: Tensor) -> Tensor:
    return torch.maximum(0.25 * r, -0.75 * r)


def huber(r: Tensor) -> Tensor:
    return nn.functional.huber_loss(r, torch.zeros_like(r), reduction="none")


BELOW = LearnedStart(1, 1.0, learnable=False)
HALF = SquaredNorm(0.5, learnable=False)
CASES = {
    "mean": descent(Penalty(torch.square), 1, 0.05, 60),
    "median": descent(Penalty(torch.abs), 1, 0.25, 60),
    "max": descent(Penalty(torch.relu), 1, 0.5, 60, start=BELOW),
    "sum": descent(Sum(), 1, 0.1, 60, regularizer=HALF, scaling="sum"),
    "quantile 0.25": descent(Penalty(pinball), 1, 0.5, 60),
    "Huber, delta = 1": descent(Penalty(huber), 1, 0.2, 60),
}


def draw_energy() -> None:
    """The energy of a set of numbers, its elements below, and every second y of the path."""
    with picture("closed-forms-energy", 2, 3, (8, 4.4)) as axes:
        for ax, (title, layer) in zip(axes.flat, CASES.items(), strict=True):
            path = path_of(layer, SET)
            grid = torch.linspace(*((-2.0, 36.0) if title == "sum" else (-1.5, 8.0)), 96)[:, None]
            ax.plot(grid, energy_at(layer, SET, grid), color=BLUE)
            ax.plot(path[::2], energy_at(layer, SET, path[::2]), ".", color=ORANGE, ms=4)
            ax.plot(path[-1], energy_at(layer, SET, path[-1:]), "o", color=ORANGE)
            ax.plot(SET, [0.03] * len(SET), "|", color=GREY, transform=ax.get_xaxis_transform())
            ax.set(title=title, xlabel="y", ylabel="energy")


def draw_attention() -> None:
    x = torch.tensor([[-1.5, -0.5], [-0.5, 1.2], [0.4, -1.0], [1.2, 0.9], [1.8, -0.3]])
    query = torch.tensor([0.9, 0.4])
    weights = torch.exp(x @ query)
    layer = descent(Attention(query), 2, 0.03, 150)
    path = path_of(layer, x)
    across, up = torch.linspace(-2.1, 3.0, 60), torch.linspace(-1.6, 1.7, 60)
    with picture("closed-forms-attention", 1, 1, (6.5, 2.8)) as axes:
        ax = axes[0, 0]
        energy = energy_at(layer, x, torch.cartesian_prod(across, up)).reshape(60, 60).T
        ax.contour(across, up, energy, levels=12, cmap="Blues_r", linewidths=0.8)
        ax.scatter(*x.T, s=25 * weights, color=BLUE, label="elements, sized by weight", zorder=3)
        ax.plot(path[:, 0], path[:, 1], ".-", color=ORANGE, ms=3, label="path of $y_r$")
        ax.plot(*torch.softmax(x @ query, 0) @ x, "kx", ms=9, label="softmax-weighted mean")
        ax.plot(*(weights[:, None] * x).mean(0), "r+", ms=10, label="as the appendix has it")
        ax.set(xlabel="$y_1$", ylabel="$y_2$", aspect="equal")
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1))


def draw() -> None:
    draw_energy()
    draw_attention()
