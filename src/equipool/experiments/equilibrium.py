"""The layer as the experiments build it."""

from __future__ import annotations

from collections.abc import Sequence

from equipool.aggregation import EquilibriumAggregation
from equipool.potentials.resnet import ResNetPotential
from equipool.regularizers import SquaredNorm
from equipool.solvers import RestrainedNesterov
from equipool.starts import LearnedStart, ZeroStart


def equilibrium_layer(
    in_channels: int,
    out_channels: int,
    hidden: Sequence[int],
    *,
    num_steps: int,
    learning_rate: float = 0.125,
    momentum: float = 0.9,
    max_step: float | None = None,
    curvature_safe: bool = False,
    start_value: float | None = None,
    regularizer_weight: float = 0.1,
    dropout: float = 0.0,
    bias_std: float = 0.0,
) -> EquilibriumAggregation:
    """Equilibrium Aggregation with the paper's potential. The defaults are the paper's, too:
    unrestrained, the solver is `Nesterov`.

    Args:
        in_channels: size of an element.
        out_channels: size of the pooled vector.
        hidden: sizes of the potential's layers.
        num_steps: of the inner optimiser.
        learning_rate: that it starts with.
        momentum: that it starts with.
        max_step: the longest step of `RestrainedNesterov`; None for any length.
        curvature_safe: whether its steps are shortened where the energy is steep.
        start_value: of every component of a learned start; None for the zero vector.
        regularizer_weight: that the regulariser starts with.
        dropout: of the potential's hidden units.
        bias_std: standard deviation of the potential's initial biases.

    Example:
        >>> layer = equilibrium_layer(3, 8, (16, 16, 4), num_steps=5)
        >>> layer(torch.randn(5, 10, 3)).shape
        torch.Size([5, 8])
    """
    start = (
        ZeroStart(out_channels) if start_value is None else LearnedStart(out_channels, start_value)
    )
    return EquilibriumAggregation(
        in_channels,
        out_channels,
        potential=ResNetPotential(
            in_channels, out_channels, tuple(hidden), dropout=dropout, bias_std=bias_std
        ),
        regularizer=SquaredNorm(regularizer_weight),
        solver=RestrainedNesterov(
            learning_rate, momentum, max_step=max_step, curvature_safe=curvature_safe
        ),
        start=start,
        num_steps=num_steps,
    )
