"""Fields and parameters of our own classes, read from their source.

Importing a task or a solver imports torch, which takes seconds. The help needs no more than names,
types, defaults and docstrings, so it reads the files instead. `tests/cli/test_flags.py` compares
what is found here with the classes themselves.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = "equipool"
FOLDER = Path(__file__).parents[1]
REQUIRED = object()  # the default of a parameter that has none


@dataclass(frozen=True)
class Parameter:
    """A field of a dataclass, or a parameter of a constructor."""

    name: str
    annotation: str
    default: Any
    about: str


@dataclass(frozen=True)
class Source:
    """The definition of a class, and the module it is in."""

    node: ast.ClassDef
    module: str

    @property
    def is_dataclass(self) -> bool:
        return any("dataclass" in ast.unparse(one) for one in self.node.decorator_list)

    def lineage(self) -> Iterator[Source]:
        """The class and those of its bases that are ours."""
        yield self
        for base in self.node.bases:
            name = base.value if isinstance(base, ast.Subscript) else base
            found = find_class(self.module, ast.unparse(name))
            if found is not None:
                yield from found.lineage()


def read_parameters(module: str, name: str) -> list[Parameter]:
    """What a class is made from: a dataclass's fields, its own before inherited ones, or the
    parameters of a constructor.

    Example:
        >>> [parameter.name for parameter in read_parameters("equipool.solvers", "Newton")]
        ['damping']
    """
    source = find_class(module, name)
    if source is None:
        raise LookupError(f"{module} has no class {name}")
    lineage = list(source.lineage())
    about: dict[str, str] = {}
    for one in lineage:
        about = _documented(ast.get_docstring(one.node) or "") | about
    found = _fields(lineage) if source.is_dataclass else _constructor(lineage)
    return [
        Parameter(name, annotation, default, about.get(name, ""))
        for name, annotation, default in found
    ]


def find_class(module: str, name: str) -> Source | None:
    """The class that a module defines or imports by this name; None if it is not ours."""
    for node in _parsed(module).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return Source(node, module)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return find_class(node.module or "", alias.name)
    return None


@cache
def _parsed(module: str) -> ast.Module:
    path = FOLDER.joinpath(*module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def _fields(lineage: Sequence[Source]) -> list[tuple[str, str, Any]]:
    found: dict[str, tuple[str, str, Any]] = {}
    for source in lineage:
        for node in source.node.body if source.is_dataclass else ():
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                annotation = ast.unparse(node.annotation)
                if not annotation.startswith("ClassVar"):
                    name = node.target.id
                    found.setdefault(name, (name, annotation, _default(node.value)))
    return list(found.values())


def _constructor(lineage: Sequence[Source]) -> list[tuple[str, str, Any]]:
    for source in lineage:
        for node in source.node.body:
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                arguments = node.args.args[1:]
                missing = [None] * (len(arguments) - len(node.args.defaults))
                defaults = [*missing, *node.args.defaults]
                return [
                    (
                        one.arg,
                        ast.unparse(one.annotation) if one.annotation else "",
                        _default(value),
                    )
                    for one, value in zip(arguments, defaults, strict=True)
                ]
    return []


def _default(node: ast.expr | None) -> Any:
    return REQUIRED if node is None else ast.literal_eval(node)


def _documented(docstring: str) -> dict[str, str]:
    """The entries of the section `Args:` of a docstring."""
    section = re.search(r"^Args:\n((?:[ ].*\n?|\n)+)", inspect.cleandoc(docstring), re.MULTILINE)
    found: dict[str, str] = {}
    name = ""
    for line in section[1].splitlines() if section else ():
        entry = re.match(r"    (\w+): (.*)", line)
        if entry:
            name = entry[1]
            found[name] = entry[2].strip()
        elif line.strip() and name:
            found[name] += f" {line.strip()}"
    return found
