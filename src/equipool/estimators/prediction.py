"""Predictions for any number of bags of any size, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from equipool.aggregation import EquilibriumAggregation
from equipool.energy import Weights, scaling_weights
from equipool.estimators.bags import Array, Bags
from equipool.estimators.network import BagNetwork
from equipool.estimators.scaling import Scaling
from equipool.large import solve_chunks

ELEMENTS = 1 << 16  # per batch
LARGE = 1 << 13  # elements of a bag whose minimum is sought from that of a sample
CHUNK = 1 << 14  # elements of a large bag at a time
SAMPLE = 1 << 11
SAMPLE_STEPS = 3
PASSES = 12  # through a large bag, at most; four are usual
TOLERANCE = 1e-4  # of the gradient's largest component
FLATTEST = 1e-3  # smallest curvature of a Newton step, of the largest


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
    for part in batches(np.where(bags.sizes > LARGE, ELEMENTS + 1, bags.sizes), ELEMENTS):
        some = bags[part]
        outputs = [_predict(network, scaling, some, device) for network in networks]
        found.append(torch.stack(outputs).mean(0).cpu().numpy())
    return np.concatenate(found)


def _predict(network: BagNetwork, scaling: Scaling, bags: Bags, device: torch.device) -> Tensor:
    layer = network.aggregation
    if len(bags) == 1 and len(bags.elements) > LARGE and isinstance(layer, EquilibriumAggregation):
        single = deepcopy(network).float()
        y = pool_large(single.aggregation, EncodedBag(scaling, bags.elements, single, device))
        return network.head(y.to(next(network.parameters()).dtype))
    x = to_tensor(scaling, bags.elements, network).to(device)
    return network(x, ptr=torch.from_numpy(bags.ptr).to(device))


@dataclass(frozen=True, eq=False)
class EncodedBag:
    """The elements of a large bag, scaled and encoded some at a time, anew in every iteration."""

    scaling: Scaling
    elements: Array
    network: BagNetwork
    device: torch.device

    def __iter__(self) -> Iterator[Tensor]:
        for start in range(0, len(self.elements), CHUNK):
            yield self.at(slice(start, start + CHUNK))

    def at(self, rows: slice | Array) -> Tensor:
        """Some of the encoded elements."""
        x = to_tensor(self.scaling, self.elements[rows], self.network).to(self.device)
        encoded: Tensor = self.network.encoder(x)
        return encoded


def pool_large(layer: Any, bag: EncodedBag) -> Tensor:
    r"""The minimum of a large bag's energy, `[1, K]`.

    It begins at the minimum of a sample of the bag, and takes Newton steps with the Hessian $H$ of
    that sample and the gradient of the whole bag,

    $$y \leftarrow y - H^{-1} \nabla E(y),$$

    of which each makes the gradient about ten times smaller. It stops when no component of the
    gradient exceeds the tolerance. If that fails, the layer searches through the whole bag itself.
    """
    count = len(bag.elements)
    sample = bag.at(sample_rows(count))
    whole = scaling_weights(layer.scaling, torch.tensor([count], device=bag.device), sample.dtype)
    like_whole = Weights(whole.regularizer, whole.potential * (count / SAMPLE))
    guess = layer.energy(sample).reweighted(like_whole)

    def gradient(y: Tensor) -> Tensor:
        total = torch.zeros_like(y)
        for x in bag:
            weights = Weights(whole.regularizer * (len(x) / count), whole.potential)
            total += layer.energy(x).reweighted(weights).gradient(y)
        return total

    y = layer.solve(sample).y
    curvature = guess.hessian(y)
    for _ in range(SAMPLE_STEPS):
        y = y - _newton_step(curvature, guess.gradient(y))
        curvature = guess.hessian(y)
    best = step = y
    residual, length = torch.inf, 1.0
    for _ in range(PASSES):
        slope = gradient(y)
        if (norm := float(slope.abs().max())) < residual:
            best, residual, length, step = y, norm, 1.0, _newton_step(curvature, slope)
        else:
            length /= 4
        if residual <= TOLERANCE:
            break
        y = best - length * step
    if residual > layer.steps.tolerance:  # the sample is too unlike the bag
        return solve_chunks(layer, bag, diagnostics=False).y
    return best


def sample_rows(count: int) -> Array:
    """The rows of a sample of a bag, always the same."""
    return np.random.default_rng(0).choice(count, SAMPLE, replace=False, shuffle=False)


def _newton_step(hessian: Tensor, gradient: Tensor) -> Tensor:
    """The Newton step, downhill in directions of negative curvature too."""
    values, vectors = torch.linalg.eigh(hessian)
    sizes = values.abs()
    sizes = sizes.clamp(min=float(sizes.max()) * FLATTEST)
    along = (vectors.mT @ gradient.unsqueeze(-1)) / sizes.unsqueeze(-1)
    return (vectors @ along).squeeze(-1)


def to_tensor(scaling: Scaling, elements: Array, network: nn.Module) -> Tensor:
    """The scaled elements, `[N, d]`, in the network's precision."""
    wide = next(network.parameters()).dtype == torch.float64
    return torch.from_numpy(scaling(elements, np.float64 if wide else np.float32))
