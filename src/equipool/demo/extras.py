"""What the demonstration needs beyond the core."""

from __future__ import annotations

from importlib.util import find_spec

EXTRAS = {"report": ("matplotlib", "jinja2"), "cli": ("rich",)}


def missing_extras() -> str | None:
    """What to install before the demonstration can run, or None where nothing is missing."""
    missing = {
        extra: [module for module in modules if find_spec(module) is None]
        for extra, modules in EXTRAS.items()
    }
    absent = [module for modules in missing.values() for module in modules]
    if not absent:
        return None
    extras = ",".join(extra for extra, modules in missing.items() if modules)
    return f'The demonstration needs {" and ".join(absent)}. Run: pip install "equipool[{extras}]"'
