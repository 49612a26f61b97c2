"""Predictions for any number of bags of any size, and what each element contributes."""

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
from equipool.estimators.training import BagNetwork
from equipool.estimators.transformers import Scaling
from equipool.large import solve_chunks
from equipool.leave_one_out import influence

ELEMENTS = 1 << 16  # per batch
LARGE = 1 << 13  # elements of a bag whose minimum is sought from that of a sample
CHUNK = 1 << 14  # elements of a large bag at a time
SAMPLE = 1 << 11
PASSES = 10  # through a large bag, at most; four are usual
TOLERANCE = 1e-4  # of the gradient's largest component
FLATTEST = 1e-3  # smallest curvature of a Newton step, of the largest
NEWTON_FROM = 256  # elements of a bag; leaving each out in turn takes time that grows as a square


@torch.no_grad()
def predict_bags(
    networks: Sequence[BagNetwork], scaling: Scaling, bags: Bags, device: torch.device
) -> Array:
    """The mean of the networks' outputs for each bag, `[B, O]`, in their precision. They must be in
    evaluation mode."""
    networks = [network.to(device) for network in networks]
    large = bags.sizes > LARGE
    # A large bag is alone in its batch; every bag counts for one element more, as it may be empty.
    batch = np.cumsum(np.minimum(bags.sizes, LARGE) + 1) // ELEMENTS
    apart = (np.diff(batch) > 0) | large[1:] | large[:-1]
    parts: list[Array] = np.split(np.arange(len(bags)), np.flatnonzero(apart) + 1)
    found = []
    for part in parts:
        some = bags[part]
        outputs = [_predict(network, scaling, some, device) for network in networks]
        found.append(torch.stack(outputs).mean(0).cpu().numpy())
    return np.concatenate(found)


def _predict(network: BagNetwork, scaling: Scaling, bags: Bags, device: torch.device) -> Tensor:
    layer = network.aggregation
    if len(bags.elements) > LARGE and len(bags) == 1 and isinstance(layer, EquilibriumAggregation):
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

    of which each makes the gradient about ten times smaller. If that fails, the layer searches
    through the whole bag itself.
    """
    count = len(bag.elements)
    sample = bag.at(sample_rows(count))
    whole = scaling_weights(layer.scaling, torch.tensor([count], device=bag.device), sample.dtype)
    guess = layer.energy(sample).reweighted(
        Weights(whole.regularizer, whole.potential * (count / SAMPLE))
    )
    y = layer.solve(sample).y
    for _ in range(PASSES):
        gradient = torch.zeros_like(y)
        for x in bag:
            weights = Weights(whole.regularizer * (len(x) / count), whole.potential)
            gradient += layer.energy(x).reweighted(weights).gradient(y)
        if gradient.abs().max() <= TOLERANCE:
            return y
        # downhill in directions of negative curvature too
        values, vectors = torch.linalg.eigh(guess.hessian(y))
        sizes = values.abs()
        sizes = sizes.clamp(min=float(sizes.max()) * FLATTEST)
        along = (vectors.mT @ gradient.unsqueeze(-1)) / sizes.unsqueeze(-1)
        y = y - (vectors @ along).squeeze(-1)
    return solve_chunks(layer, bag, diagnostics=False).y


def sample_rows(count: int) -> Array:
    """The rows of a sample of a bag, always the same."""
    return np.random.default_rng(0).choice(count, SAMPLE, replace=False, shuffle=False)


def to_tensor(scaling: Scaling, elements: Array, network: nn.Module) -> Tensor:
    """The scaled elements, `[N, d]`, in the network's precision."""
    wide = next(network.parameters()).dtype == torch.float64
    return torch.from_numpy(scaling(elements, np.float64 if wide else np.float32))


@torch.no_grad()
def effects(network: BagNetwork, x: Tensor, method: str) -> Tensor:
    """The outputs with each element of a bag `x [n, d]`, minus the outputs without it: `[n, O]`.

    `"exact"` predicts for each bag that lacks one element; `"newton"` takes one Newton step of the
    energy instead, which needs an equilibrium; `"auto"` is `"newton"` for large bags where it is
    possible.
    """
    layer = network.aggregation
    equilibrium = isinstance(layer, EquilibriumAggregation)
    if method == "auto":
        method = "newton" if equilibrium and len(x) >= NEWTON_FROM else "exact"
    if len(x) == 0:
        return network(x)[:0]
    if method == "exact":
        return network(x) - _without_each(network, x)
    if not isinstance(layer, EquilibriumAggregation):
        raise ValueError("method is 'newton', expected 'exact': only an equilibrium has an energy")
    found = influence(layer, network.encoder(x), function=network.head).effect
    assert found is not None
    return found


def _without_each(network: BagNetwork, x: Tensor) -> Tensor:
    """The outputs of the bags that lack one element, `[n, O]`, some bags at a time."""
    count = len(x)
    position = torch.arange(count - 1, device=x.device)
    outputs = []
    for lacking in torch.arange(count, device=x.device).split(max(ELEMENTS // count, 1)):
        kept = position + (position >= lacking.unsqueeze(-1))  # [bags, n - 1]
        outputs.append(network(x[kept]))
    return torch.cat(outputs)
