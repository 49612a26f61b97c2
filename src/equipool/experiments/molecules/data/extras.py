"""What preparing molecules needs beyond the core."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from equipool import extras

NEEDED = ("ogb", "rdkit")


def check_extras() -> None:
    """Say what to install where something is missing. What has been prepared is read without."""
    extras.check_extras("preparing molecules", {"molecules": NEEDED})


def installed() -> dict[str, str]:
    """The versions of what is needed, where it is there and says so."""
    versions = {}
    for module in NEEDED:
        with suppress(PackageNotFoundError):
            versions[module] = version(module)
    return versions
