"""What the engine needs beyond the core."""

from __future__ import annotations

from equipool import extras


def check_extras() -> None:
    """Say what to install where something is missing."""
    extras.check_extras("training", {"train": ("lightning", "safetensors")})
