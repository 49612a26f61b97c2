"""Pictures of idea.md, drawn with the library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from drawing import BLUE, GREEN, GREY, ORANGE, picture
from torch import Tensor, nn

import equipool

TRAINING_STEPS = 1000


class Penalty(nn.Module):
    """The sum of `f(x - y)` over the coordinates."""

    def __init__(self, f: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.f = f

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.f(x - y).sum(-1)


class Norm(nn.Module):
    """The distance of an element and its set's output: the minimum is the point with the smallest
    total distance to the elements."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return ((x - y).square().sum(-1) + 1e-6).sqrt()


def energy_at(layer: equipool.EquilibriumAggregation, x: Tensor, ys: Tensor) -> Tensor:
    """Energy of one set `x [N, C]` at many outputs `ys [G, K]`: `[G]`."""
    return layer.energy(x.expand(len(ys), *x.shape))(ys).detach()


def path_of(layer: equipool.EquilibriumAggregation, x: Tensor) -> Tensor:
    """Every y of the search for one set: `[T + 1, K]`."""
    trajectory = layer.solve(x, trajectory=True).trajectory
    assert trajectory is not None
    return trajectory[:, 0].detach()


def descent(
    potential: nn.Module, channels: int, learning_rate: float, num_steps: int, **settings: Any
) -> equipool.EquilibriumAggregation:
    """Plain gradient descent on the mean of the potentials."""
    return equipool.EquilibriumAggregation(
        channels, channels, potential=potential, steps=num_steps,
        solver=equipool.GradientDescent(learning_rate, learnable=False),
        **{"regularizer": 0, "scaling": "mean"} | settings,
    )  # fmt: skip


def maximum(start: float, learning_rate: float) -> equipool.EquilibriumAggregation:
    """It must start below the set."""
    below = equipool.LearnedStart(1, start, learnable=False)
    return descent(Penalty(torch.relu), 1, learning_rate, 1000, start=below)


def draw_energies() -> None:
    """One set, three potentials."""
    x = torch.tensor([[-1.2], [-0.6], [-0.1], [0.5], [3.0]])
    grid = torch.linspace(-2.5, 3.8, 400)[:, None]
    cases = {
        "$F = (x - y)^2$: the mean": descent(Penalty(torch.square), 1, 0.5, 1),
        "$F = |x - y|$: the median": descent(Penalty(torch.abs), 1, 0.01, 1000),
        r"$F = \max(0, x - y)$: the maximum": maximum(-1.2, 0.02),
    }
    with picture("idea-energies", 1, 3, (10, 3)) as axes:
        for axis, (title, layer) in zip(axes[0], cases.items(), strict=True):
            for element in x:
                potential = layer.potential(element.expand_as(grid), grid)
                axis.plot(grid, potential, color=GREY, lw=0.8)
            axis.plot(grid, energy_at(layer, x, grid), color=BLUE, lw=2.2, label="their mean")
            y = layer(x)
            axis.plot(y, energy_at(layer, x, y), "o", color=ORANGE, label="the layer's output")
            axis.plot(x, torch.zeros(len(x)), "|", color="black", ms=10, label="elements")
            axis.plot([], [], color=GREY, lw=0.8, label="potential of one element")
            axis.set(title=title, xlabel="$y$", ylim=(-0.25, 6))
        axes[0, 0].set_ylabel("energy")
        axes[0, 2].legend(loc="upper right")


def norm_layer(momentum: float) -> equipool.EquilibriumAggregation:
    return equipool.EquilibriumAggregation(
        2, 2, potential=Norm(), regularizer=0, scaling="mean", steps=40,
        solver=equipool.Nesterov(0.2, momentum, learnable=False),
    )  # fmt: skip


def draw_paths() -> None:
    """The path of y in the plane, with and without momentum."""
    x = torch.tensor([[-1.0, 2.6], [0.4, 2.2], [3.2, 2.9], [2.6, 0.3], [3.4, 1.4]])
    across, up = torch.meshgrid(
        torch.linspace(-1.6, 4, 120), torch.linspace(-0.6, 3.4, 120), indexing="xy"
    )
    with picture("idea-paths", 1, 2, (10, 4), width_ratios=(1.3, 1)) as axes:
        plane, course = axes[0]
        at = torch.stack([across, up], dim=-1).flatten(0, 1)
        height = energy_at(norm_layer(0.0), x, at).view_as(across)
        plane.contour(across, up, height, levels=18, cmap="Blues_r", linewidths=0.8)
        plane.plot(*x.T, "k+", ms=9, label="elements")
        for momentum, color in ((0.0, GREEN), (0.8, ORANGE)):
            layer = norm_layer(momentum)
            path = path_of(layer, x)
            plane.plot(*path.T, ".-", color=color, lw=1, ms=4)
            course.plot(energy_at(layer, x, path), color=color, label=f"momentum {momentum:g}")
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


def pairs() -> tuple[Tensor, Tensor]:
    x = torch.rand(256, 2, 1) * 2 - 1
    return x, x.amax(1)


def draw_level_sets() -> None:
    """Which pairs share a code: the maximum, by the layer and by a trained sum."""
    torch.manual_seed(0)
    rival = SumPooling()
    train(rival, pairs)
    axis = torch.linspace(-1, 1, 80)
    first, second = torch.meshgrid(axis, axis, indexing="xy")
    x = torch.stack([first, second], dim=-1).reshape(-1, 2, 1)
    panels = {
        "the maximum": x.amax(1),
        "sum pooling, one number, trained": rival(x).detach(),
        "the layer, one number": maximum(-1.0, 0.01)(x).detach(),
    }
    levels = torch.linspace(-0.8, 0.8, 9).tolist()
    with picture("idea-level-sets", 1, 3, (10, 3.4)) as axes:
        for plane, (title, values) in zip(axes[0], panels.items(), strict=True):
            plane.contour(first, second, values.view_as(first), levels=levels, linewidths=1.3)
            plane.set(title=title, aspect="equal", xlabel="$x_1$")
        axes[0, 0].set_ylabel("$x_2$")


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


def draw_learned() -> None:
    """What a network found when it was asked for the median: its potential, and three energies."""
    torch.manual_seed(0)
    solver = equipool.Nesterov(momentum=0.5)
    layer = equipool.EquilibriumAggregation(
        1, 1, potential=NumberPotential(), solver=solver, steps=8
    )
    train(layer, medians)
    grid = torch.linspace(-3, 3, 300)[:, None]
    x, target = medians()
    chosen = target.flatten().argsort()[[8, 32, 56]].tolist()
    with picture("idea-learned", 1, 2, (10, 3.4)) as axes:
        left, right = axes[0]
        for element, set_, color in zip(
            (-1.0, 0.0, 1.0), chosen, (GREEN, BLUE, ORANGE), strict=True
        ):
            left.plot(
                grid, layer.potential(torch.full_like(grid, element), grid).detach(), color=color
            )
            left.axvline(element, color=color, lw=0.8, ls=":", label=f"$x = {element:g}$")
            curve, y = energy_at(layer, x[set_], grid), layer(x[set_]).detach()
            right.plot(grid, curve - curve.min(), color=color)
            right.plot(y, energy_at(layer, x[set_], y) - curve.min(), "o", color=color)
            right.axvline(float(target[set_]), color=color, lw=0.8, ls=":")
            right.axvline(float(x[set_].mean()), color=color, lw=0.8, ls="--")
        left.set(title="learned potential of one element", xlabel="$y$", ylabel="$F(x, y)$")
        left.legend()
        right.plot([], [], "ko", label="the layer's output")
        right.plot([], [], "k:", lw=0.8, label="the median")
        right.plot([], [], "k--", lw=0.8, label="the mean")
        right.set(title="energy of three sets", xlabel="$y$", ylabel="above its minimum")
        right.legend()


def draw() -> None:
    draw_energies()
    draw_paths()
    draw_level_sets()
    draw_learned()
