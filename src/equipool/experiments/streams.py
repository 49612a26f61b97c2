"""Random streams."""

from __future__ import annotations

import hashlib

import torch


def generator_for(device: torch.device, *key: object) -> torch.Generator:
    """A generator that is seeded by the key: equal keys give equal streams on one kind of device,
    other keys independent ones. A CPU and a GPU draw different numbers from one seed.

    Example:
        >>> cpu = torch.device("cpu")
        >>> generator_for(cpu, "median", 0).initial_seed()
        1734236146
    """
    # A CPU's generator uses at most 32 bits of its seed.
    digest = hashlib.blake2b(repr(key).encode(), digest_size=4).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest, "little"))
