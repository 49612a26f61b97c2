"""What the engine needs beyond the core."""

from __future__ import annotations

from importlib.util import find_spec

NEEDED = ("lightning", "safetensors")


def check_extras() -> None:
    """Say what to install where something is missing."""
    missing = [module for module in NEEDED if find_spec(module) is None]
    if missing:
        raise ImportError(
            f'training needs {" and ".join(missing)}. Run: pip install "equipool[train]"'
        )
