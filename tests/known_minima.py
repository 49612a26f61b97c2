"""Layers whose minimum is known, as oracles."""

import torch
from torch import nn

from equipool import EquilibriumAggregation, GradientDescent


class Penalty(nn.Module):
    """The sum of `f(x - y)` over the coordinates."""

    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x, y):
        return self.f(x - y).sum(-1)


class Sum(nn.Module):
    """With `|y|^2 / 2` it is minimised by the sum. Alone it is linear in y."""

    def forward(self, x, y):
        return -(x * y).sum(-1)


class PowerSums(nn.Module):
    """The potential of the paper's Theorem 1, for sets of `set_size` numbers."""

    def __init__(self, set_size):
        super().__init__()
        self.set_size = set_size

    def forward(self, x, y):
        powers = x ** torch.arange(1, y.shape[-1] + 1)
        return (y / self.set_size - powers).square().sum(-1)


def descent(potential, in_channels, out_channels, learning_rate, num_steps, **settings):
    """Plain gradient descent on the mean of the potentials."""
    return EquilibriumAggregation(
        in_channels, out_channels, potential=potential, steps=num_steps,
        solver=GradientDescent(learning_rate, learnable=False),
        **{"regularizer": 0, "scaling": "mean"} | settings,
    )  # fmt: skip


def mean(channels, learning_rate=0.5, num_steps=1):
    return descent(Penalty(torch.square), channels, channels, learning_rate, num_steps)


def median(channels, learning_rate=0.01, num_steps=1000):
    return descent(Penalty(torch.abs), channels, channels, learning_rate, num_steps)


def maximum(channels, learning_rate=0.01, num_steps=1000, **settings):
    penalty = Penalty(torch.relu)
    return descent(penalty, channels, channels, learning_rate, num_steps, **settings)


def quantile(channels, tau, learning_rate=0.01, num_steps=1000):
    penalty = Penalty(lambda r: torch.maximum(tau * r, (tau - 1) * r))
    return descent(penalty, channels, channels, learning_rate, num_steps)


def huber(channels, delta=1.0, learning_rate=1.0, num_steps=100):
    penalty = Penalty(lambda r: nn.functional.huber_loss(r, 0 * r, reduction="none", delta=delta))
    return descent(penalty, channels, channels, learning_rate, num_steps)
