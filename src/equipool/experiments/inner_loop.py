"""The equilibrium layer as the experiments build it: settings for it and for its parts.

A part (solver, differentiation, start, step rule) is the text of its name and its arguments, such
as `"newton:damping=0.01"`: `equipool.parts` reads it from the classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from equipool.parts import Part
from equipool.settings import OneOf, Range, Share, check_fields

if TYPE_CHECKING:
    from equipool.aggregation import EquilibriumAggregation

SOLVER = Part("equipool.solvers.Solver")
DIFFERENTIATION = Part("equipool.differentiation.Differentiation")
START = Part("equipool.starts.Start")
STEPS = Part("equipool.steps.Steps")

Aggregation = Annotated[str, OneOf("equipool.baselines.AGGREGATIONS")]
StepsSetting = Annotated[int, Range(least=0)] | Annotated[str, STEPS]


@dataclass(frozen=True, kw_only=True)
class InnerLoop:
    """Fields of a task that has equilibrium layers. The defaults are the paper's.

    Args:
        solver: inner optimiser.
        differentiation: gradient of the layer.
        start: first y of each set.
        scaling: how the energy grows with the number of elements.
        regularizer_weight: initial weight of the regulariser.
        potential_dropout: dropout rate of the potential's hidden units.
        bias_std: standard deviation of the potential's initial biases.

    >>> InnerLoop(solver="nesterov:momentum=0.5,learning_rate=0.1").solver
    'nesterov:learning_rate=0.1,momentum=0.5'
    """

    solver: Annotated[str, SOLVER] = "nesterov"
    differentiation: Annotated[str, DIFFERENTIATION] = "unrolled"
    start: Annotated[str, START] = "zero"
    scaling: Annotated[str, OneOf("equipool.scalings.SCALINGS")] = "log"
    regularizer_weight: Annotated[float, Range(above=0)] = 0.1
    potential_dropout: Share = 0.0
    bias_std: Annotated[float, Range(least=0)] = 0.0

    def __post_init__(self) -> None:
        check_fields(self)

    def equilibrium_layer(
        self, in_channels: int, out_channels: int, potential: Sequence[int], steps: int | str
    ) -> EquilibriumAggregation:
        """A layer with these settings, whose potential has layers of these sizes.

        Example:
            >>> loop = InnerLoop(start="learned:value=1.0")
            >>> loop.equilibrium_layer(3, 8, (16, 16, 4), steps=5).start
            LearnedStart(8, value=1.0)
        """
        from equipool.aggregation import EquilibriumAggregation
        from equipool.potentials.resnet import ResNetPotential
        from equipool.regularizers import SquaredNorm

        channels, sizes = (in_channels, out_channels), tuple(potential)
        return EquilibriumAggregation(
            *channels,
            potential=ResNetPotential(
                *channels, sizes, dropout=self.potential_dropout, bias_std=self.bias_std
            ),
            regularizer=SquaredNorm(self.regularizer_weight),
            solver=SOLVER.build(self.solver),
            differentiation=DIFFERENTIATION.build(self.differentiation),
            start=START.build(self.start, out_channels=out_channels),
            steps=steps if isinstance(steps, int) else STEPS.build(steps),
            scaling=self.scaling,  # type: ignore[arg-type]
        )
