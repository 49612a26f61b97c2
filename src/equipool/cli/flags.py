"""A flag for every field of a task and of the training settings, and for every part of the layer.

Flags have the names of the fields in a run's `config.json`: `solver.momentum` is
`--solver.momentum`.

Importing a task or a solver imports torch, which takes seconds. The help needs no more than names,
types, defaults and docstrings, so they are read from the source. `tests/cli/test_flags.py` compares
what is found with the classes themselves.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from equipool.experiments.inner_loop import STEPS, Family, family_of
from equipool.experiments.presets import EXPERIMENTS

FOLDER = Path(__file__).parents[1]
REQUIRED = object()  # the default of a parameter that has none
TASK, TRAINING = "fields", "training"  # where a value goes in config.json
NOTHING = "none"

WITH_COMMAS = ("labels",)  # fields whose values have commas: a sweep takes them as they are
APART = ("csv", "dataset")  # flags that name the same thing in different ways

# Names that some fields may have, for the help. Tests compare them with the code.
CHOICES = {
    "aggregation": (
        "equilibrium", "sum", "scaled-sum", "mean", "max", "attention", "gated-attention",
        "pna", "laf", "set2set", "set-transformer", "janossy", "frechet",
    ),
    "schedule": ("constant", "cosine", "linear", "trapezoid"),
    "precision": ("32-true", "tf32", "bf16-mixed", "bf16-true", "64-true"),
}  # fmt: skip

# Parameters of parts whose docstrings need formulas, for the help.
ABOUT_PARTS = {
    "learning_rate": "initial step size",
    "momentum": "initial momentum",
    "max_step": "largest length of a step; none for no limit",
    "max_gradient": "largest norm of the inner gradient; none for no limit",
    "curvature_safe": "shorten steps where the energy is steep",
    "learnable": "learn these values; false keeps them fixed",
    "gtol": "a set keeps its y while its gradient is smaller than this",
    "clip_value": "largest absolute value of a component of y; none for no limit",
    "damping": "smallest nonzero damping of the Hessian",
    "value": "initial value of every component",
    "std": "standard deviation of random starts",
}

LAYER = "Equilibrium layer"  # heading of its flags
# Fields of a task that belong to its equilibrium layers, beside those of `InnerLoop`.
OF_LAYERS = ("potential", "potential_output", "local_potential")


@dataclass(frozen=True)
class Parameter:
    name: str
    annotation: str
    default: Any
    about: str


@dataclass(frozen=True)
class Reader:
    """How a value is typed. `read` raises ValueError or KeyError for anything else."""

    read: Callable[[str], Any]
    metavar: str
    expected: str


@dataclass(frozen=True)
class Flag:
    """A flag, and the field that its value is for."""

    section: str  # TASK or TRAINING
    name: str  # of the field, as in config.json
    reader: Reader
    default: str | None  # as typed; None if required, or if it depends on another flag
    about: str
    group: str  # heading in the help
    hidden: bool = False  # the help leaves it out

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def parameter(self) -> str:
        return self.name.replace(".", "__")

    def read(self, text: str) -> Any:
        try:
            return self.reader.read(text.strip())
        except (ValueError, KeyError, OverflowError):
            expected = f"expected {self.reader.expected}"
            raise ValueError(f"{self.option} is {text!r}, {expected}") from None

    def read_several(self, text: str) -> tuple[Any, ...]:
        """The values that were typed with commas between them, each once."""
        parts = [text] if self.name in WITH_COMMAS else text.split(",")
        return tuple(dict.fromkeys(self.read(part) for part in parts))


def _whole(text: str) -> int:
    """A whole number, which may be typed as 1e6."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
    if not number.is_integer():
        raise ValueError(text)
    return int(number)


READERS = {
    "int": Reader(_whole, "INT", "a whole number"),
    "float": Reader(float, "FLOAT", "a number"),
    "bool": Reader(lambda text: {"true": True, "false": False}[text.lower()], "true|false",
                   "true or false"),
    "str": Reader(str, "TEXT", "text"),
    "tuple[int, ...]": Reader(lambda text: tuple(int(part) for part in text.split("x")),
                              "INTxINT...", "whole numbers such as 600x300x32"),
}  # fmt: skip


def reader_of(annotation: str) -> Reader:
    """How values of this type are typed.

    Example:
        >>> reader_of("int").read("1e6"), reader_of("float | None").read("none")
        (1000000, None)
    """
    plain = annotation.removesuffix(" | None")
    if plain not in READERS:
        raise TypeError(f"there is no flag for a field of type {annotation}")
    inner = READERS[plain]
    if plain == annotation:
        return inner

    def read(text: str) -> Any:
        return None if text.lower() == NOTHING else inner.read(text)

    return Reader(read, inner.metavar, f"{inner.expected} or {NOTHING}")


def as_typed(value: Any) -> str:
    """A value as it is typed.

    Example:
        >>> as_typed(None), as_typed(True), as_typed((600, 300)), as_typed(0.001)
        ('none', 'true', '600x300', '0.001')
    """
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return "x".join(str(part) for part in value)
    return str(value)


@cache
def flags_of(task: str) -> tuple[Flag, ...]:
    """The flags of a task: its fields, those of its equilibrium layers, and the training settings.

    Example:
        >>> [flag.option for flag in flags_of("median")][:3]
        ['--aggregation', '--embedding', '--batch-size']
    """
    experiment = EXPERIMENTS[task]
    shared = {one.name for one in read_parameters("equipool.experiments.inner_loop", "InnerLoop")}
    own, layer, training = [], [], []
    for parameter in read_parameters(experiment.module, experiment.kind):
        family = family_of(parameter.annotation)
        if family is not None:
            layer += _part_flags(parameter, family)
        elif parameter.name in shared or parameter.name in OF_LAYERS:
            layer.append(_plain_flag(parameter, TASK, LAYER))
        else:
            own.append(_plain_flag(parameter, TASK, "Task"))
    for one in read_parameters("equipool.training.config", "TrainingConfig"):
        default = experiment.training.get(one.name, one.default)
        training.append(_plain_flag(replace(one, default=default), TRAINING, "Training"))
    return (*own, *layer, *training)


def _plain_flag(parameter: Parameter, section: str, group: str) -> Flag:
    about = _about(parameter.about)
    reader = reader_of(parameter.annotation)
    if parameter.name in CHOICES:
        reader = replace(reader, metavar="NAME")
        about = re.sub(r"(, )?a name in [\w.]+", "", about).strip()
        about += f"{'; ' if about else ''}one of {', '.join(CHOICES[parameter.name])}"
    default = None if parameter.default is REQUIRED else as_typed(parameter.default)
    return Flag(section, parameter.name, reader, default, about, group)


def _part_flags(field: Parameter, family: Family, hidden: bool = False) -> list[Flag]:
    """The flag that names a part, and one for each parameter that any part of its family has."""
    names = f"one of {', '.join(family.names)}"
    choice = Reader({name: name for name in family.names}.__getitem__, "NAME", names)
    about = f"{_about(field.about)}; {names}"
    if family is STEPS:
        either = f"a whole number, or {names}"
        choice = Reader(
            lambda text: text if text in family.names else _whole(text), "INT|NAME", either
        )
        about = f"{_about(field.about)}: a number, or {names}"
    default = None if field.default in (REQUIRED, None) else as_typed(field.default)
    flags = [Flag(TASK, field.name, choice, default, about, LAYER, hidden)]
    for name, owners in _parameters_in(family).items():
        parameter = next((one for one in owners.values() if one.about), next(iter(owners.values())))
        parameter = replace(parameter, name=f"{field.name}.{name}")
        inner = family_of(parameter.annotation)
        if inner is not None:
            flags += _part_flags(parameter, inner, hidden=True)
            continue
        flag = _plain_flag(parameter, TASK, LAYER)
        same = len({repr(one.default) for one in owners.values()}) == 1
        about = ABOUT_PARTS.get(name, flag.about.partition(". ")[0])
        if 2 * len(owners) < len(family.names) or len(family.names) == 2 > len(owners):
            about += f" ({', '.join(owners)})"
        default = flag.default if same else None
        flags.append(replace(flag, about=about, default=default, hidden=hidden))
    return flags


def _parameters_in(family: Family) -> dict[str, dict[str, Parameter]]:
    """The parameters of all parts of a family: by name, then by part."""
    found: dict[str, dict[str, Parameter]] = {}
    for part, kind in family.names.items():
        for parameter in read_parameters(family.module, kind):
            if parameter.name not in family.supplied:
                found.setdefault(parameter.name, {})[part] = parameter
    return found


def _about(documented: str) -> str:
    """The help text from a field's docstring: without formulas and the final full stop, and with
    `none` for `None`."""
    text = re.sub(r"\$[^$]*\$,? ?", "", documented).replace("`", "")
    return re.sub(r"\bNone\b", NOTHING, text).strip().rstrip(".")


def check_apart(given: Mapping[Flag, str], saved: Mapping[str, Any]) -> None:
    """Raise if both flags in `APART` were typed, or one of them and the run, whose fields are
    `saved`, has the other."""
    typed = {flag.name for flag, text in given.items() if text.lower() != NOTHING}
    if typed.issuperset(APART):
        raise ValueError(f"give either --{APART[0]} or --{APART[1]}, not both")
    for name, before in (APART, APART[::-1]):
        if name in typed and saved.get(before) is not None:
            raise ValueError(f"--{name} contradicts the run, which has --{before} {saved[before]}")


def read_parameters(module: str, name: str) -> list[Parameter]:
    """What a class is made from: a dataclass's fields, its own before inherited ones, or the
    parameters of a constructor.

    Example:
        >>> [parameter.name for parameter in read_parameters("equipool.solvers", "Newton")]
        ['damping']
    """
    lineage = list(_lineage(module, name))
    about: dict[str, str] = {}
    for node in reversed(lineage):
        about |= _documented(ast.get_docstring(node) or "")
    dataclasses = [node for node in lineage if "dataclass" in map(_name_of, node.decorator_list)]
    found = [field for node in dataclasses for field in _fields(node)]
    if not dataclasses:
        found = next(filter(None, map(_constructor, lineage)), [])
    parameters: dict[str, Parameter] = {}
    for key, annotation, default in found:
        value = REQUIRED if default is None else ast.literal_eval(default)
        parameters.setdefault(key, Parameter(key, annotation, value, about.get(key, "")))
    return list(parameters.values())


def _lineage(module: str, name: str) -> Iterator[ast.ClassDef]:
    """The class that a module defines or imports by this name, and those of its bases that are
    ours."""
    for node in _parsed(module).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            yield node
            for base in node.bases:
                yield from _lineage(module, ast.unparse(base).partition("[")[0])
        elif isinstance(node, ast.ImportFrom):
            ours = str(node.module).startswith("equipool")
            if ours and name in [alias.name for alias in node.names]:
                yield from _lineage(str(node.module), name)


@cache
def _parsed(module: str) -> ast.Module:
    package, *rest = module.split(".")
    if package == "equipool":  # found without importing packages that import torch
        path = FOLDER.joinpath(*rest)
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    else:
        file = Path(str(getattr(find_spec(module), "origin", module)))
    return ast.parse(file.read_text(encoding="utf-8"))


# Name, annotation and default.
Declared = tuple[str, str, ast.expr | None]


def _name_of(decorator: ast.expr) -> str:
    return ast.unparse(decorator).partition("(")[0]


def _fields(node: ast.ClassDef) -> list[Declared]:
    found = [one for one in node.body if isinstance(one, ast.AnnAssign)]
    fields = [(ast.unparse(one.target), ast.unparse(one.annotation), one.value) for one in found]
    return [field for field in fields if not field[1].startswith("ClassVar")]


def _constructor(node: ast.ClassDef) -> list[Declared]:
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.name == "__init__":
            given = one.args.args[1:]
            defaults = [None] * (len(given) - len(one.args.defaults)) + one.args.defaults
            types = [ast.unparse(arg.annotation) if arg.annotation else "" for arg in given]
            return list(zip([arg.arg for arg in given], types, defaults, strict=True))
    return []


def _documented(docstring: str) -> dict[str, str]:
    """The entries of the section `Args:` of a docstring."""
    section = re.search(r"^Args:\n((?:[ ].*\n?|\n)+)", inspect.cleandoc(docstring), re.MULTILINE)
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section[1] if section else "", re.M)
    return {name: " ".join(text.split()) for name, text in entries}
