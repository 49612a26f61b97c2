"""What the elements of a bag contribute to a network's outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from equipool.aggregation import EquilibriumAggregation
from equipool.estimators.network import BagNetwork
from equipool.leave_one_out import influence

ELEMENTS = 1 << 16  # per batch of bags that lack one element
NEWTON_FROM = 256  # elements of a bag; leaving each out in turn takes time that grows as a square


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
