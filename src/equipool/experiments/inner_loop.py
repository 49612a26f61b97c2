"""Settings of equilibrium aggregation that all experiments have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from equipool.aggregation import EquilibriumAggregation
from equipool.experiments.equilibrium import equilibrium_layer

SHARE = "at least 0 and less than 1"


@dataclass(frozen=True, kw_only=True)
class InnerLoop:
    """Fields of a task that has equilibrium layers; the defaults are the paper's.

    Args:
        inner_learning_rate: step size that the inner optimiser starts with.
        inner_momentum: momentum that the inner optimiser starts with.
        inner_max_step: the longest step of the inner optimiser; None for any length.
        inner_curvature_safe: whether the inner steps are shortened where the energy is steep.
        start_value: of every component of a learned start; None for the zero vector.
        regularizer_weight: weight that the regulariser starts with.
        potential_dropout: share of the potentials' hidden units that are dropped in training.
        bias_std: standard deviation of the potentials' initial biases; 0 as in the paper.
    """

    inner_learning_rate: float = 0.125
    inner_momentum: float = 0.9
    inner_max_step: float | None = None
    inner_curvature_safe: bool = False
    start_value: float | None = None
    regularizer_weight: float = 0.1
    potential_dropout: float = 0.0
    bias_std: float = 0.0

    def __post_init__(self) -> None:
        longest = self.inner_max_step
        for name, met, expected in (
            ("inner_learning_rate", self.inner_learning_rate > 0, "more than 0"),
            ("inner_momentum", 0 <= self.inner_momentum < 1, SHARE),
            ("inner_max_step", longest is None or longest > 0, "more than 0, or None"),
            ("regularizer_weight", self.regularizer_weight > 0, "more than 0"),
            ("potential_dropout", 0 <= self.potential_dropout < 1, SHARE),
            ("bias_std", self.bias_std >= 0, "0 or more"),
        ):
            if not met:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected {expected}")

    def equilibrium_layer(
        self, in_channels: int, out_channels: int, potential: Sequence[int], num_steps: int
    ) -> EquilibriumAggregation:
        """A layer with these settings, whose potential has layers of these sizes.

        Example:
            >>> loop = InnerLoop(start_value=1.0)
            >>> loop.equilibrium_layer(3, 8, (16, 16, 4), num_steps=5).start
            LearnedStart(8, value=1.0)
        """
        return equilibrium_layer(
            in_channels,
            out_channels,
            potential,
            num_steps=num_steps,
            learning_rate=self.inner_learning_rate,
            momentum=self.inner_momentum,
            max_step=self.inner_max_step,
            curvature_safe=self.inner_curvature_safe,
            start_value=self.start_value,
            regularizer_weight=self.regularizer_weight,
            dropout=self.potential_dropout,
            bias_std=self.bias_std,
        )
