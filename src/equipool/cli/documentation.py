"""What the docstring of a dataclass says about its fields."""

from __future__ import annotations

import inspect
import re


def documented_arguments(kind: type) -> dict[str, str]:
    """The entries of the section `Args:` in a docstring, by name; those of its bases are behind.

    Example:
        >>> from equipool.training import TrainingConfig
        >>> documented_arguments(TrainingConfig)["warmup_steps"]
        'steps in which the learning rate rises linearly.'
    """
    found: dict[str, str] = {}
    for part in kind.__mro__:
        told = _arguments(inspect.cleandoc(vars(part).get("__doc__") or ""))
        found |= {name: about for name, about in told.items() if name not in found}
    return found


def _arguments(docstring: str) -> dict[str, str]:
    section = re.search(r"^Args:\n((?:[ ].*\n?|\n)+)", docstring, re.MULTILINE)
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
