"""What preparing molecules needs beyond the core."""

from __future__ import annotations

from importlib.util import find_spec

NEEDED = ("ogb", "rdkit")


def check_extras() -> None:
    """Say what to install where something is missing. What has been prepared is read without."""
    missing = [module for module in NEEDED if find_spec(module) is None]
    if missing:
        raise ImportError(
            f"preparing molecules needs {' and '.join(missing)}. "
            'Run: pip install "equipool[molecules]"'
        )
