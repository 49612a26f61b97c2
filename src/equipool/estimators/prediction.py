"""Predictions for any number of bags of any size, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import nn

from equipool.estimators.bags import Array, Bags
from equipool.estimators.scaling import Scaling

ELEMENTS = 1 << 16  # per batch


def batches(sizes: Array, max_elements: int = ELEMENTS) -> Iterator[slice]:
    """Cut bags into runs of at most so many elements and bags; a larger bag is alone.

    Example:
        >>> list(batches(np.array([3, 2, 9, 0, 1]), max_elements=5))
        [slice(0, 2, None), slice(2, 3, None), slice(3, 5, None)]
    """
    start = elements = 0
    for position, size in enumerate(sizes):
        full = elements + size > max_elements or position - start >= max_elements
        if full and position > start:
            yield slice(start, position)
            start, elements = position, 0
        elements += size
    if start < len(sizes):
        yield slice(start, len(sizes))


@torch.no_grad()
def predict_bags(
    networks: Sequence[nn.Module], scaling: Scaling, bags: Bags, device: torch.device
) -> Array:
    """The mean of the networks' outputs for each bag, `[B, O]`, float32. The networks must be in
    evaluation mode."""
    networks = [network.to(device) for network in networks]
    found = []
    for part in batches(bags.sizes):
        some = bags[part]
        x = torch.from_numpy(scaling(some.elements)).to(device)
        ptr = torch.from_numpy(some.ptr).to(device)
        outputs = torch.stack([network(x, ptr=ptr) for network in networks])
        found.append(outputs.mean(0).cpu().numpy())
    return np.concatenate(found)
