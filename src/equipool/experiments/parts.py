"""Parts of the layer as settings: a name and the arguments of a constructor.

A task stores its solver, differentiation, start and step rule as plain values, so that they can be
written to `config.json`, compared and chosen on the command line:

>>> SOLVERS.complete("newton")
{'name': 'newton', 'damping': 0.001}
>>> SOLVERS.build({"name": "newton", "damping": 0.1}).damping
0.1

Nothing here imports torch before a part is completed or built.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

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
    """Parts that can take each other's place.

    Args:
        noun: what to call them in messages.
        module: where the classes are.
        classes: their names.
        ending: of the class names, left out of the parts' names.
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
            >>> SOLVERS.names["heavy-ball"], STARTS.names["learned"]
            ('HeavyBall', 'LearnedStart')
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
        "RestrainedNesterov", "Nesterov", "HeavyBall", "GradientDescent", "SafeguardedNesterov",
        "StronglyConvexNesterov", "Newton", "Polished",
    ),
)  # fmt: skip
LINEAR_SOLVERS = Family(
    "linear solver", "equipool.linear_solvers", ("ConjugateGradients", "Cholesky", "Neumann")
)
DIFFERENTIATIONS = Family(
    "differentiation", "equipool.differentiation", ("Unrolled", "Truncated", "OneStep", "Implicit")
)
STARTS = Family(
    "start", "equipool.starts", ("ZeroStart", "LearnedStart"), "Start", ("out_channels",)
)
STEPS = Family("steps", "equipool.steps", ("Fixed", "ToTolerance"))

# By the annotation of a field or of a constructor's parameter, without `| None` and brackets.
FAMILIES = {
    "SolverSetting": SOLVERS,
    "DifferentiationSetting": DIFFERENTIATIONS,
    "StartSetting": STARTS,
    "StepsSetting": STEPS,
    "Solver": Family("solver", SOLVERS.module, SOLVERS.classes[:-1]),  # what Polished polishes
    "Newton": Family("Newton's method", SOLVERS.module, ("Newton",)),
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
    """Annotation and default of each parameter of a constructor."""
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
