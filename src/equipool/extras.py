"""Packages that parts need beyond the core, and the extras that install them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec


def advice(part: str, needed: Mapping[str, Sequence[str]]) -> str | None:
    """What to install before a part can be used; None if nothing is missing.

    Args:
        part: what needs the packages, the start of the sentence.
        needed: modules, by the extra that installs them.

    Example:
        >>> advice("counting", {"abacus": ["torch", "beads"]})
        'counting needs beads. Run: pip install "equipool[abacus]"'
    """
    missing = {
        extra: [module for module in modules if find_spec(module) is None]
        for extra, modules in needed.items()
    }
    absent = [module for modules in missing.values() for module in modules]
    if not absent:
        return None
    extras = ",".join(extra for extra, modules in missing.items() if modules)
    return f'{part} needs {" and ".join(absent)}. Run: pip install "equipool[{extras}]"'


def check_extras(part: str, needed: Mapping[str, Sequence[str]]) -> None:
    """Raise an ImportError with the `advice` if something is missing."""
    found = advice(part, needed)
    if found is not None:
        raise ImportError(found)
