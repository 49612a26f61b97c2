"""Predictions for any number of bags of any size, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from equipool.aggregation import EquilibriumAggregation
from equipool.estimators.bags import Array, Bags
from equipool.estimators.network import BagNetwork
from equipool.estimators.scaling import Scaling
from equipool.large import solve_chunks

ELEMENTS = 1 << 16  # per batch


def batches(sizes: Array, max_elements: int) -> Iterator[slice]:
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
    networks: Sequence[BagNetwork], scaling: Scaling, bags: Bags, device: torch.device
) -> Array:
    """The mean of the networks' outputs for each bag, `[B, O]`, in their precision. They must be in
    evaluation mode."""
    networks = [network.to(device) for network in networks]
    found = []
    for part in batches(bags.sizes, ELEMENTS):
        some = bags[part]
        outputs = [_predict(network, scaling, some, device) for network in networks]
        found.append(torch.stack(outputs).mean(0).cpu().numpy())
    return np.concatenate(found)


def _predict(network: BagNetwork, scaling: Scaling, bags: Bags, device: torch.device) -> Tensor:
    layer, large = network.aggregation, len(bags.elements) > ELEMENTS
    if large and isinstance(layer, EquilibriumAggregation):  # `batches` leaves a large bag alone
        chunks = ScaledChunks(scaling, bags, network)
        y = solve_chunks(layer, chunks, encoder=network.encoder, diagnostics=False).y
        return network.head(y)
    x = to_tensor(scaling, bags, network).to(device)
    return network(x, ptr=torch.from_numpy(bags.ptr).to(device))


@dataclass(frozen=True, eq=False)
class ScaledChunks:
    """The elements of a large bag, scaled some at a time, from the beginning in every iteration."""

    scaling: Scaling
    bags: Bags
    network: BagNetwork

    def __iter__(self) -> Iterator[Tensor]:
        for start in range(0, len(self.bags.elements), ELEMENTS):
            elements = self.bags.elements[start : start + ELEMENTS]
            part = Bags(elements, np.array([0, len(elements)]))
            yield to_tensor(self.scaling, part, self.network)


def to_tensor(scaling: Scaling, bags: Bags, network: nn.Module) -> Tensor:
    """The scaled elements, `[N, d]`, in the network's precision."""
    wide = next(network.parameters()).dtype == torch.float64
    return torch.from_numpy(scaling(bags.elements, np.float64 if wide else np.float32))
