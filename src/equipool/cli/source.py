"""Fields and parameters of our own classes, read from their source.

Importing a task or a solver imports torch, which takes seconds. The help needs no more than names,
types, defaults and docstrings, so it reads the files instead. `tests/cli/test_flags.py` compares
what is found here with the classes themselves.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1]
REQUIRED = object()  # the default of a parameter that has none


@dataclass(frozen=True)
class Parameter:
    """A field of a dataclass, or a parameter of a constructor."""

    name: str
    annotation: str
    default: Any
    about: str


def read_parameters(module: str, name: str) -> list[Parameter]:
    """What a class is made from: a dataclass's fields, its own before inherited ones, or the
    parameters of a constructor.

    Example:
        >>> [parameter.name for parameter in read_parameters("equipool.solvers", "Newton")]
        ['damping']
    """
    lineage = list(_lineage(module, name))
    about: dict[str, str] = {}
    for node in lineage:
        about = _documented(ast.get_docstring(node) or "") | about
    found: dict[str, tuple[str, ast.expr | None]] = {}
    if _is_dataclass(lineage[0]):
        for node in filter(_is_dataclass, lineage):
            found |= {key: value for key, value in _fields(node).items() if key not in found}
    else:
        found = next(filter(None, map(_constructor, lineage)), {})
    return [
        Parameter(key, annotation, REQUIRED if default is None else ast.literal_eval(default),
                  about.get(key, ""))
        for key, (annotation, default) in found.items()
    ]  # fmt: skip


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
    path = FOLDER.joinpath(*module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(one) for one in node.decorator_list)


def _fields(node: ast.ClassDef) -> dict[str, tuple[str, ast.expr | None]]:
    found = [one for one in node.body if isinstance(one, ast.AnnAssign)]
    fields = {ast.unparse(one.target): (ast.unparse(one.annotation), one.value) for one in found}
    return {name: one for name, one in fields.items() if not one[0].startswith("ClassVar")}


def _constructor(node: ast.ClassDef) -> dict[str, tuple[str, ast.expr | None]]:
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.name == "__init__":
            arguments = one.args.args[1:]
            defaults = [None] * (len(arguments) - len(one.args.defaults)) + one.args.defaults
            types = [ast.unparse(arg.annotation) if arg.annotation else "" for arg in arguments]
            names = [arg.arg for arg in arguments]
            return dict(zip(names, zip(types, defaults, strict=True), strict=True))
    return {}


def _documented(docstring: str) -> dict[str, str]:
    """The entries of the section `Args:` of a docstring."""
    section = re.search(r"^Args:\n((?:[ ].*\n?|\n)+)", inspect.cleandoc(docstring), re.MULTILINE)
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section[1] if section else "", re.M)
    return {name: " ".join(text.split()) for name, text in entries}
