"""Pictures of closed-forms.md, drawn with the library."""

from __future__ import annotations

import torch
from drawing import BLUE, GREY, ORANGE, picture
from idea import energy_at, path_of

from equipool import closed_form

SET = torch.tensor([[1.0], [2.0], [3.5], [4.0], [6.5]])
CASES = {
    "mean": closed_form.mean(1, learning_rate=0.05, num_steps=60),
    "median": closed_form.median(1, learning_rate=0.25, num_steps=60),
    "max": closed_form.max(1, learning_rate=0.5, num_steps=60),
    "sum": closed_form.sum(1, learning_rate=0.1, num_steps=60),
    "quantile 0.25": closed_form.quantile(1, 0.25, learning_rate=0.5, num_steps=60),
    "Huber, delta = 1": closed_form.huber(1, 1.0, learning_rate=0.2, num_steps=60),
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
    layer = closed_form.attention(query, learning_rate=0.03, num_steps=150)
    path = path_of(layer, x)
    across, up = torch.linspace(-2.1, 3.0, 60), torch.linspace(-1.6, 1.7, 60)
    points = torch.cartesian_prod(across, up)
    ys = torch.cat([points, weights.mean().expand(len(points), 1)], dim=-1)
    with picture("closed-forms-attention", 1, 1, (6.5, 2.8)) as axes:
        ax = axes[0, 0]
        energy = energy_at(layer, x, ys).reshape(60, 60).T
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
