"""Draw the pictures of the page on closed forms: `python docs/figures/closed_forms.py [folder]`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("agg")

import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from torch import Tensor

from equipool import EquilibriumAggregation, NoRegularizer, closed_form
from equipool.potentials import Max
from equipool.solvers import Nesterov

SET = torch.tensor([[1.0], [2.0], [3.5], [4.0], [6.5]])
BLUE, ORANGE, GREY = "#3465a4", "#e07b00", "#888888"
STYLE = {
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "equipool",  # the same picture is the same file
}


class Case(NamedTuple):
    title: str
    layer: EquilibriumAggregation
    exact: float
    grid: tuple[float, float] = (-1.5, 8.0)


CASES = [
    Case("mean", closed_form.mean(1, learning_rate=0.05, num_steps=60), 3.4),
    Case("median", closed_form.median(1, learning_rate=0.25, num_steps=60), 3.5),
    Case("max", closed_form.max(1, learning_rate=0.5, num_steps=60), 6.5),
    Case("sum", closed_form.sum(1, learning_rate=0.1, num_steps=60), 17.0, grid=(-2.0, 36.0)),
    Case("quantile 0.25", closed_form.quantile(1, 0.25, learning_rate=0.5, num_steps=60), 2.0),
    Case("Huber, delta = 1", closed_form.huber(1, 1.0, learning_rate=0.2, num_steps=60), 3.25),
]


def energy_along(layer: EquilibriumAggregation, x: Tensor, ys: Tensor) -> Tensor:
    """Energy of one set `x [N, C]` at many outputs `ys [G, K]`: `[G]`."""
    repeated = x.repeat(len(ys), 1)
    index = torch.arange(len(ys)).repeat_interleave(len(x))
    return layer.energy(repeated, index)(ys).detach()


def path_of(layer: EquilibriumAggregation, x: Tensor) -> Tensor:
    """`[num_steps + 1, K]`."""
    trajectory = layer.solve(x, trajectory=True).trajectory
    assert trajectory is not None
    return trajectory[:, 0].detach()


def draw_descent(axes: Axes, layer: EquilibriumAggregation, x: Tensor, grid: Tensor) -> None:
    """The energy of a set of numbers, its elements below, and every second y of the path."""
    path = path_of(layer, x)
    axes.plot(grid, energy_along(layer, x, grid[:, None]), color=BLUE)
    shown = path[::2]
    axes.plot(shown, energy_along(layer, x, shown), ".", color=ORANGE, markersize=4)
    axes.plot(path[-1], energy_along(layer, x, path[-1:]), "o", color=ORANGE)
    axes.plot(x, [0.03] * len(x), "|", color=GREY, transform=axes.get_xaxis_transform())


def draw_energy() -> None:
    _, rows = plt.subplots(2, 3, figsize=(8, 4.4))
    for axes, case in zip(rows.flat, CASES, strict=True):
        draw_descent(axes, case.layer, SET, torch.linspace(*case.grid, 96))
        axes.set(title=case.title, xlabel="y")
    for axes in rows[:, 0]:
        axes.set_ylabel("energy")


def draw_path() -> None:
    _, rows = plt.subplots(2, 3, figsize=(8, 4.2), sharex=True)
    for axes, case in zip(rows.flat, CASES, strict=True):
        axes.axhline(case.exact, color=GREY, linestyle="--", linewidth=1)
        axes.plot(path_of(case.layer, SET), color=ORANGE)
        axes.set_title(case.title)
    for axes in rows[:, 0]:
        axes.set_ylabel("y")
    for axes in rows[1]:
        axes.set_xlabel("step")


def draw_max_start() -> None:
    x = torch.tensor([[-4.0], [-3.0], [-2.5], [-1.5], [-1.0]])
    solver = Nesterov(learning_rate=0.5, momentum=0.0, learnable=False)
    from_zero = EquilibriumAggregation(
        1, 1, potential=Max(), regularizer=NoRegularizer(), solver=solver, scaling="mean"
    )
    from_below = closed_form.max(1, learning_rate=0.5, num_steps=40)
    _, panels = plt.subplots(1, 2, figsize=(7, 2.6), sharey=True)
    titles = ("from zero", "from below")
    for axes, title, layer in zip(panels, titles, (from_zero, from_below), strict=True):
        draw_descent(axes, layer, x, torch.linspace(-5, 1, 121))
        axes.set(title=title, xlabel="y")
    panels[0].set_ylabel("energy")


def draw_attention() -> None:
    x = torch.tensor([[-1.5, -0.5], [-0.5, 1.2], [0.4, -1.0], [1.2, 0.9], [1.8, -0.3]])
    query = torch.tensor([0.9, 0.4])
    weights = torch.exp(x @ query)
    layer = closed_form.attention(query, learning_rate=0.03, num_steps=150)
    path = path_of(layer, x)
    horizontal, vertical = torch.linspace(-2.1, 3.0, 60), torch.linspace(-1.6, 1.7, 60)
    points = torch.cartesian_prod(horizontal, vertical)
    ys = torch.cat([points, weights.mean().expand(len(points), 1)], dim=-1)
    energy = energy_along(layer, x, ys).reshape(60, 60).T
    claimed = (weights[:, None] * x).mean(0)
    _, axes = plt.subplots(figsize=(6.5, 2.8))
    axes.contour(horizontal, vertical, energy, levels=12, cmap="Blues_r", linewidths=0.8)
    axes.scatter(*x.T, s=25 * weights, color=BLUE, label="elements, sized by weight", zorder=3)
    axes.plot(path[:, 0], path[:, 1], ".-", color=ORANGE, markersize=3, label="path of $y_r$")
    axes.plot(*torch.softmax(x @ query, 0) @ x, "kx", markersize=9, label="softmax-weighted mean")
    axes.plot(*claimed, "r+", markersize=10, label="as the appendix has it")
    axes.set(xlabel="$y_1$", ylabel="$y_2$", aspect="equal")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def draw_frechet() -> None:
    def poincare(x: Tensor, y: Tensor) -> Tensor:
        room = (1 - x.square().sum(-1)) * (1 - y.square().sum(-1))
        return 2 * torch.asinh(torch.linalg.vector_norm(x - y, dim=-1) / room.sqrt())

    x = torch.tensor([[0.97, 0.0], [-0.3, 0.5], [-0.3, -0.4]])
    path = path_of(closed_form.frechet_mean(2, poincare, learning_rate=0.02, num_steps=60), x)
    _, axes = plt.subplots(figsize=(4.8, 3))
    axes.add_patch(plt.Circle((0, 0), 1, fill=False, color=GREY))
    axes.scatter(*x.T, color=BLUE, label="elements", zorder=3)
    axes.plot(path[:, 0], path[:, 1], ".-", color=ORANGE, markersize=3, label="path of y")
    axes.plot(*path[-1], "o", color=ORANGE, label="Fréchet mean")
    axes.plot(*x.mean(0), "k+", markersize=9, label="Euclidean mean")
    axes.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), aspect="equal")
    axes.set_axis_off()
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)


def draw_power_sums() -> None:
    one = torch.tensor([[0.0], [4.0], [7.0], [11.0]])
    other = torch.tensor([[1.0], [2.0], [9.0], [10.0]])
    layer = closed_form.power_sums(set_size=4)
    _, (left, right) = plt.subplots(1, 2, figsize=(7, 2.4))
    for height, values, color in ((1, one, BLUE), (0, other, ORANGE)):
        left.plot(values, [height] * 4, "o", color=color)
    left.set(title="two sets", ylim=(-0.6, 1.6), yticks=[], xlabel="x")
    right.bar(range(1, 5), (layer(one) - layer(other)).abs()[0].tolist(), color=GREY)
    right.set(title="difference of their power sums", xlabel="power", xticks=range(1, 5))


PICTURES: dict[str, Callable[[], None]] = {
    "closed-forms-energy.svg": draw_energy,
    "closed-forms-path.svg": draw_path,
    "closed-forms-max-start.svg": draw_max_start,
    "closed-forms-attention.svg": draw_attention,
    "closed-forms-frechet.svg": draw_frechet,
    "closed-forms-power-sums.svg": draw_power_sums,
}


def draw_all(folder: Path) -> None:
    """Write every picture into the folder."""
    with plt.rc_context(STYLE):
        for name, draw in PICTURES.items():
            draw()
            plt.savefig(folder / name, metadata={"Date": None})
            plt.close()


if __name__ == "__main__":
    draw_all(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
