"""Draw the pictures of the page on the idea: `python docs/figures/idea.py [folder]`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import Tensor, nn

import equipool

BLUE, ORANGE, GREEN, GREY = "#3f51b5", "#e4572e", "#2a9d6f", "#9aa0a6"
STYLE = {
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "svg.hashsalt": "equipool",  # the same picture is the same file
}

TRAINING_STEPS = 1000


class Distance(nn.Module):
    """A potential that depends on the difference of an element and its set's output alone."""

    def __init__(self, of_difference: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.of_difference = of_difference

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.of_difference(x - y)


def square(difference: Tensor) -> Tensor:
    """Its minimum over a set is the mean."""
    return difference.square().sum(-1)


def absolute(difference: Tensor) -> Tensor:
    """Its minimum over a set is the median."""
    return difference.abs().sum(-1)


def hinge(difference: Tensor) -> Tensor:
    """Its lowest minimum over a set is the largest element."""
    return difference.clamp(min=0).sum(-1)


def norm(difference: Tensor) -> Tensor:
    """Its minimum over a set is the point with the smallest total distance to the elements."""
    return (difference.square().sum(-1) + 1e-6).sqrt()


def pooling(
    of_difference: Callable[[Tensor], Tensor],
    *,
    channels: int = 1,
    start: float = 0.0,
    learning_rate: float = 0.02,
    momentum: float = 0.0,
    num_steps: int = 1000,
) -> equipool.EquilibriumAggregation:
    """A layer that minimises a given potential, with nothing to learn."""
    return equipool.EquilibriumAggregation(
        channels,
        channels,
        potential=Distance(of_difference),
        regularizer=equipool.NoRegularizer(),
        solver=equipool.Nesterov(learning_rate, momentum, learnable=False),
        start=equipool.LearnedStart(channels, start, learnable=False),
        scaling="mean",
        num_steps=num_steps,
    )


def energy_curve(layer: equipool.EquilibriumAggregation, x: Tensor, at: Tensor) -> Tensor:
    """Energy of one set of numbers `x [N, 1]` at each of the outputs `at [G]`."""
    copies = x.expand(at.shape[0], *x.shape)
    return layer.energy(copies)(at.unsqueeze(-1)).detach()


def draw_energies() -> None:
    """One set, three potentials."""
    x = torch.tensor([[-1.2], [-0.6], [-0.1], [0.5], [3.0]])
    grid = torch.linspace(-2.5, 3.8, 400)
    cases = [
        ("$F = (x - y)^2$: the mean", square, 0.0),
        ("$F = |x - y|$: the median", absolute, 0.0),
        (r"$F = \max(0, x - y)$: the maximum", hinge, -2.2),
    ]
    _, axes = plt.subplots(1, 3, figsize=(10, 3))
    for axis, (title, of_difference, start) in zip(axes, cases, strict=True):
        layer = pooling(of_difference, start=start)
        for element in x:
            axis.plot(grid, of_difference(element - grid.unsqueeze(-1)), color=GREY, lw=0.8)
        axis.plot(grid, energy_curve(layer, x, grid), color=BLUE, lw=2.2, label="their mean")
        y = layer(x)
        axis.plot(y.flatten(), layer.energy(x)(y), "o", color=ORANGE, label="the layer's output")
        axis.plot(x.flatten(), torch.zeros(len(x)), "|", color="black", ms=10, label="elements")
        axis.plot([], [], color=GREY, lw=0.8, label="potential of one element")
        axis.set(title=title, xlabel="$y$", ylim=(-0.25, 6))
    axes[0].set_ylabel("energy")
    axes[2].legend(loc="upper right")


def draw_paths() -> None:
    """The way of y in the plane, with and without momentum."""
    x = torch.tensor([[-1.0, 2.6], [0.4, 2.2], [3.2, 2.9], [2.6, 0.3], [3.4, 1.4]])
    _, (plane, course) = plt.subplots(1, 2, figsize=(10, 4), width_ratios=(1.3, 1))
    across, up = torch.meshgrid(
        torch.linspace(-1.6, 4, 120), torch.linspace(-0.6, 3.4, 120), indexing="xy"
    )
    at = torch.stack([across, up], dim=-1).flatten(0, 1)
    layer = pooling(norm, channels=2)
    height = layer.energy(x.expand(at.shape[0], -1, -1))(at).view_as(across)
    plane.contour(across, up, height, levels=18, cmap="Blues_r", linewidths=0.8)
    plane.plot(*x.T, "k+", ms=9, label="elements")
    for momentum, color in ((0.0, GREEN), (0.8, ORANGE)):
        layer = pooling(norm, channels=2, learning_rate=0.2, momentum=momentum, num_steps=40)
        trajectory = layer.solve(x, trajectory=True).trajectory
        assert trajectory is not None
        path = trajectory[:, 0]
        energies = layer.energy(x.expand(path.shape[0], -1, -1))(path)
        plane.plot(*path.T, ".-", color=color, lw=1, ms=4)
        course.plot(energies, color=color, label=f"momentum {momentum:g}")
    plane.plot(0, 0, "s", color="black", ms=4, label="start")
    plane.set(title="energy and path of $y$", aspect="equal")
    plane.legend(loc="lower right", frameon=True, framealpha=1, ncols=2)
    course.set(title="energy along the path", xlabel="step", ylabel="energy")
    course.legend()


def train(model: nn.Module, batch: Callable[[], tuple[Tensor, Tensor]]) -> None:
    """Fit a model to a function of sets that are drawn anew each step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, TRAINING_STEPS)
    for _ in range(TRAINING_STEPS):
        x, target = batch()
        loss = (model(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


class SumPooling(nn.Module):
    """A set's code is a sum of one learned number for each element; a network reads the code."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1))
        self.read = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.encode(x).sum(1))


def draw_level_sets() -> None:
    """Which pairs share a code: the maximum, by the layer and by a trained sum."""
    torch.manual_seed(0)

    def pairs() -> tuple[Tensor, Tensor]:
        x = torch.rand(256, 2, 1) * 2 - 1
        return x, x.amax(1)

    rival = SumPooling()
    train(rival, pairs)
    layer = pooling(hinge, start=-1.2)
    axis = torch.linspace(-1, 1, 80)
    first, second = torch.meshgrid(axis, axis, indexing="xy")
    x = torch.stack([first, second], dim=-1).reshape(-1, 2, 1)
    panels = [
        ("the maximum", x.amax(1)),
        ("sum pooling, one number, trained", rival(x).detach()),
        (r"the layer, one number", layer(x).detach()),
    ]
    _, axes = plt.subplots(1, 3, figsize=(10, 3.4))
    for plane, (title, values) in zip(axes, panels, strict=True):
        plane.contour(
            first, second, values.view_as(first), levels=torch.linspace(-0.8, 0.8, 9).tolist(),
            cmap="viridis", linewidths=1.3,
        )  # fmt: skip
        plane.set(title=title, aspect="equal", xlabel="$x_1$")
    axes[0].set_ylabel("$x_2$")


def medians() -> tuple[Tensor, Tensor]:
    """Sets of nine numbers, skewed to either side, and their medians."""
    skewed = torch.randn(64, 9, 1).exp() * torch.where(torch.rand(64, 1, 1) < 0.5, -0.5, 0.5)
    x = (skewed + torch.randn(64, 1, 1)).clamp(-4, 4)
    return x, x.median(1).values


class NumberPotential(nn.Module):
    """The paper's potential for elements that are bare numbers.

    Its first normalisation divides the length of `[x; y]` away. A constant beside the number
    keeps it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.network = equipool.ResNetPotential(2, 1, hidden=(64, 64, 16))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.network(torch.cat([x, torch.ones_like(x)], dim=-1), y)


def learned_layer() -> equipool.EquilibriumAggregation:
    """A layer whose output itself was trained to be the median."""
    torch.manual_seed(0)
    layer = equipool.EquilibriumAggregation(
        1,
        1,
        potential=NumberPotential(),
        solver=equipool.Nesterov(momentum=0.5),
        num_steps=8,
    )
    train(layer, medians)
    return layer


def draw_learned() -> None:
    """What a network found when it was asked for the median."""
    layer = learned_layer()
    _, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4))
    grid = torch.linspace(-3, 3, 300)
    for element, color in ((-1.0, GREEN), (0.0, BLUE), (1.0, ORANGE)):
        x = torch.full((300, 1), element)
        left.plot(grid, layer.potential(x, grid.unsqueeze(-1)).detach(), color=color)
        left.axvline(element, color=color, lw=0.8, ls=":", label=f"$x = {element:g}$")
    left.set(title="learned potential of one element", xlabel="$y$", ylabel="$F(x, y)$")
    left.legend()
    draw_three_sets(right, layer, grid)


def draw_three_sets(axis: Axes, layer: equipool.EquilibriumAggregation, grid: Tensor) -> None:
    x, target = medians()
    chosen = target.flatten().argsort()[[8, 32, 56]]
    for position, color in zip(chosen.tolist(), (GREEN, BLUE, ORANGE), strict=True):
        one = x[position]
        curve = energy_curve(layer, one, grid)
        y = layer(one).detach()
        axis.plot(grid, curve - curve.min(), color=color)
        axis.plot(y[0], layer.energy(one)(y).detach() - curve.min(), "o", color=color)
        axis.axvline(float(target[position]), color=color, lw=0.8, ls=":")
        axis.axvline(float(one.mean()), color=color, lw=0.8, ls="--")
    axis.plot([], [], "o", color="black", label="the layer's output")
    axis.plot([], [], ":", color="black", lw=0.8, label="the median")
    axis.plot([], [], "--", color="black", lw=0.8, label="the mean")
    axis.set(title="energy of three sets", xlabel="$y$", ylabel="above its minimum")
    axis.legend()


PICTURES: dict[str, Callable[[], None]] = {
    "idea-energies.svg": draw_energies,
    "idea-paths.svg": draw_paths,
    "idea-level-sets.svg": draw_level_sets,
    "idea-learned.svg": draw_learned,
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
