"""The equilibrium layer as the experiments build it: settings for it and for its parts.

A part (solver, differentiation, start, step rule) is stored as a name and the arguments of a
constructor, so that it can be written to `config.json`, compared and chosen on the command line:

>>> SOLVERS.complete("newton")
{'name': 'newton', 'damping': 0.001}
>>> SOLVERS.build({"name": "newton", "damping": 0.1}).damping
0.1

Nothing here imports torch before a part is completed or built.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from equipool.aggregation import EquilibriumAggregation

# Annotations of a task's fields. The command line finds the family of a field by them.
SolverSetting = str | Mapping[str, Any]
DifferentiationSetting = str | Mapping[str, Any]
StartSetting = str | Mapping[str, Any]
StepsSetting = int | str | Mapping[str, Any]


class Part(dict[str, Any]):
    """The settings of a part: its `name` and all arguments of its constructor. Do not change it."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(sorted(self.items())))


@dataclass(frozen=True)
class Family:
    """Interchangeable parts of the layer.

    Args:
        noun: what to call them in messages.
        module: where the classes are.
        classes: their names.
        ending: suffix of the class names, which the parts' names leave out.
        supplied: constructor arguments that the layer supplies.
    """

    noun: str
    module: str
    classes: tuple[str, ...]
    ending: str = ""
    supplied: tuple[str, ...] = ()

    @property
    def names(self) -> dict[str, str]:
        """The class of each name.

        Example:
            >>> SOLVERS.names["gradient-descent"], STARTS.names["learned"]
            ('GradientDescent', 'LearnedStart')
        """
        return {_kebab(kind.removesuffix(self.ending)): kind for kind in self.classes}

    def complete(self, given: str | Mapping[str, Any]) -> Part:
        """Check a part's settings, and add the arguments that are missing at their defaults."""
        settings = {"name": given} if isinstance(given, str) else dict(given)
        name = settings.pop("name", None)
        if name not in self.names:
            raise ValueError(f"{self.noun} is {name!r}, expected one of {', '.join(self.names)}")
        parameters = _parameters(self.module, self.names[name], self.supplied)
        unknown = [argument for argument in settings if argument not in parameters]
        if unknown:
            known = f"it has {', '.join(parameters)}" if parameters else "it has none"
            raise ValueError(f"{self.noun} {name} has no parameter {unknown[0]}: {known}")
        complete = Part(name=name)
        for argument, (annotation, default) in parameters.items():
            if argument not in settings and default is inspect.Parameter.empty:
                raise ValueError(f"{self.noun} {name} requires the parameter {argument}")
            value = settings.get(argument, default)
            complete[argument] = _checked(f"{self.noun}.{argument}", value, annotation)
        return complete

    def build(
        self, given: str | Mapping[str, Any], supplied: Mapping[str, Any] | None = None
    ) -> Any:
        """The part itself, with these values of the arguments that the layer supplies."""
        settings = dict(self.complete(given))
        kind = getattr(import_module(self.module), self.names[settings.pop("name")])
        annotations = _parameters(self.module, kind.__name__, self.supplied)
        arguments = dict(supplied or {})
        for name, value in settings.items():
            inner = family_of(annotations[name][0])
            arguments[name] = value if inner is None or value is None else inner.build(value)
        accepted = inspect.signature(kind).parameters
        try:
            return kind(**{name: value for name, value in arguments.items() if name in accepted})
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.noun}: {error}") from error


SOLVERS = Family(
    "solver",
    "equipool.solvers",
    (
        "Nesterov", "GradientDescent", "SafeguardedNesterov", "StronglyConvexNesterov", "Newton",
    ),
)  # fmt: skip
LINEAR_SOLVERS = Family(
    "linear solver", "equipool.linear_solvers", ("ConjugateGradients", "Cholesky", "Neumann")
)
DIFFERENTIATIONS = Family(
    "differentiation", "equipool.differentiation", ("Unrolled", "Truncated", "OneStep", "Implicit")
)
STARTS = Family(
    "start",
    "equipool.starts",
    ("ZeroStart", "LearnedStart", "NormalStart"),
    "Start",
    ("out_channels",),
)
STEPS = Family("steps", "equipool.steps", ("Fixed", "RandomSteps", "ToTolerance"), "Steps")

# By the annotation of a field or of a constructor's parameter, without `| None` and brackets.
FAMILIES = {
    "SolverSetting": SOLVERS,
    "DifferentiationSetting": DIFFERENTIATIONS,
    "StartSetting": STARTS,
    "StepsSetting": STEPS,
    "Solver": Family(  # what Newton's steps come after
        "solver", SOLVERS.module, tuple(kind for kind in SOLVERS.classes if kind != "Newton")
    ),
    "LinearSolver": LINEAR_SOLVERS,
}


def family_of(annotation: str) -> Family | None:
    """The family that an annotation stands for; None for a plain value.

    Example:
        >>> family_of("LinearSolver | None").noun, family_of("float")
        ('linear solver', None)
    """
    return FAMILIES.get(re.sub(r"\[.*\]| \| None", "", annotation))


@cache
def _parameters(module: str, kind: str, supplied: tuple[str, ...]) -> dict[str, tuple[str, Any]]:
    signature = inspect.signature(getattr(import_module(module), kind))
    return {
        name: (str(parameter.annotation), parameter.default)
        for name, parameter in signature.parameters.items()
        if name not in supplied and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    }


# Types that a value of an annotation may have, and what to call them.
TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
    "str": ((str,), "text"),
}


def _checked(label: str, value: Any, annotation: str) -> Any:
    """The value, completed if it is a part itself."""
    optional = annotation.endswith("| None")
    if value is None and optional:
        return None
    inner = family_of(annotation)
    if inner is not None:
        return inner.complete(value)
    types, noun = TYPES[annotation.removesuffix(" | None")]
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise ValueError(f"{label} is {value!r}, expected {noun}{' or none' * optional}")
    return 1.0 * value if float in types else value  # type: ignore[operator]


def _kebab(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


PARTS = {"solver": SOLVERS, "differentiation": DIFFERENTIATIONS, "start": STARTS}
SHARE = "at least 0 and less than 1"


@dataclass(frozen=True, kw_only=True)
class InnerLoop:
    """Fields of a task that has equilibrium layers. The defaults are the paper's.

    Args:
        solver: inner optimiser.
        differentiation: gradient of the layer.
        start: first y of each set.
        scaling: how the energy grows with the number of elements: log, log-mean, sum or mean.
        regularizer_weight: initial weight of the regulariser.
        potential_dropout: dropout rate of the potential's hidden units.
        bias_std: standard deviation of the potential's initial biases.

    Each part is a name, or a mapping with its `name` and arguments:

    >>> InnerLoop(solver={"name": "nesterov", "momentum": 0.5}).solver["momentum"]
    0.5
    """

    solver: SolverSetting = "nesterov"
    differentiation: DifferentiationSetting = "unrolled"
    start: StartSetting = "zero"
    scaling: str = "log"
    regularizer_weight: float = 0.1
    potential_dropout: float = 0.0
    bias_std: float = 0.0

    def __post_init__(self) -> None:
        from equipool.scalings import SCALINGS

        for name, met, expected in (
            ("scaling", self.scaling in SCALINGS, f"one of {', '.join(SCALINGS)}"),
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
            scaling=self.scaling,  # type: ignore[arg-type]
        )


def check_steps(name: str, steps: StepsSetting) -> int | Part:
    """Check a step rule. A number of steps is returned as it is."""
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
