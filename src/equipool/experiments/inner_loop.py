"""The equilibrium layer as the experiments build it, and the settings for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from equipool.experiments.parts import (
    DIFFERENTIATIONS,
    SOLVERS,
    STARTS,
    STEPS,
    DifferentiationSetting,
    Part,
    SolverSetting,
    StartSetting,
    StepsSetting,
)  # fmt: skip

if TYPE_CHECKING:
    from equipool.aggregation import EquilibriumAggregation

PARTS = {"solver": SOLVERS, "differentiation": DIFFERENTIATIONS, "start": STARTS}
SHARE = "at least 0 and less than 1"

# Fields of runs that were started before the parts had settings of their own.
OLD_SOLVER = {
    "inner_learning_rate": "learning_rate",
    "inner_momentum": "momentum",
    "inner_max_step": "max_step",
    "inner_curvature_safe": "curvature_safe",
}


@dataclass(frozen=True, kw_only=True)
class InnerLoop:
    """Fields of a task that has equilibrium layers. The defaults are the paper's.

    Args:
        solver: inner optimiser.
        differentiation: gradient of the layer.
        start: first y of each set.
        regularizer_weight: initial weight of the regulariser.
        potential_dropout: dropout rate of the potential's hidden units.
        bias_std: standard deviation of the potential's initial biases.

    Each part is a name, or a mapping with its `name` and arguments:

    >>> InnerLoop(solver={"name": "restrained-nesterov", "momentum": 0.5}).solver["momentum"]
    0.5
    """

    solver: SolverSetting = "restrained-nesterov"
    differentiation: DifferentiationSetting = "unrolled"
    start: StartSetting = "zero"
    regularizer_weight: float = 0.1
    potential_dropout: float = 0.0
    bias_std: float = 0.0

    def __post_init__(self) -> None:
        for name, met, expected in (
            ("regularizer_weight", self.regularizer_weight > 0, "more than 0"),
            ("potential_dropout", 0 <= self.potential_dropout < 1, SHARE),
            ("bias_std", self.bias_std >= 0, "0 or more"),
        ):
            if not met:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected {expected}")
        for name, family in PARTS.items():
            part = family.complete(getattr(self, name))
            family.build(part, {"out_channels": 1})  # refuses values that no layer could have
            object.__setattr__(self, name, part)
        for name in ("inner_steps", "local_steps"):
            if hasattr(self, name):
                object.__setattr__(self, name, check_steps(name, getattr(self, name)))

    @classmethod
    def upgrade(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of an older run under today's names.

        Example:
            >>> InnerLoop.upgrade({"inner_momentum": 0.5, "start_value": None})
            {'solver': {'name': 'restrained-nesterov', 'momentum': 0.5}, 'start': 'zero'}
        """
        found = dict(fields)
        old = {new: found.pop(name) for name, new in OLD_SOLVER.items() if name in found}
        if old:
            found["solver"] = {"name": "restrained-nesterov", **old}
        if "start_value" in found:
            value = found.pop("start_value")
            found["start"] = "zero" if value is None else {"name": "learned", "value": value}
        return found

    def equilibrium_layer(
        self, in_channels: int, out_channels: int, potential: Sequence[int], steps: StepsSetting
    ) -> EquilibriumAggregation:
        """A layer with these settings, whose potential has layers of these sizes.

        Example:
            >>> loop = InnerLoop(start={"name": "learned", "value": 1.0})
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
            solver=SOLVERS.build(self.solver),
            differentiation=DIFFERENTIATIONS.build(self.differentiation),
            start=STARTS.build(self.start, {"out_channels": out_channels}),
            steps=steps if isinstance(steps, int) else STEPS.build(steps),
        )


def check_steps(name: str, steps: StepsSetting) -> int | Part:
    """A step rule: a number is kept, and stands for so many steps."""
    if isinstance(steps, int) and not isinstance(steps, bool):
        if steps < 0:
            raise ValueError(f"{name} is {steps!r}, expected 0 or more")
        return steps
    if not isinstance(steps, str | Mapping):
        raise ValueError(f"{name} is {steps!r}, expected a number or {', '.join(STEPS.names)}")
    if isinstance(steps, Mapping) and isinstance(steps.get("name"), int):
        steps = {"num_steps": steps["name"], **steps, "name": "fixed"}
    part = STEPS.complete(steps)
    STEPS.build(part)
    return part
