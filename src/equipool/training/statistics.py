"""Statistics of the equilibrium layers of a network, as in the paper's figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

import equipool
from equipool import EquilibriumAggregation, Solution

Statistics = dict[str, dict[str, float]]


def equilibrium_layers(network: nn.Module) -> dict[str, EquilibriumAggregation]:
    """The equilibrium layers of a network by name; `"layer"` if the network is one itself."""
    return {
        name or "layer": module
        for name, module in network.named_modules()
        if isinstance(module, EquilibriumAggregation)
    }


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients inside the block; restores the modes of all modules."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def inner_statistics(network: nn.Module, forward: Callable[[], object]) -> Statistics:
    """Statistics of every equilibrium layer that runs in `forward`, by the layer's name.

    `residual` is the largest component of the final gradient, averaged over the sets of the batch,
    `residual_max` its maximum, `converged` the fraction of sets whose residual is within the
    layer's tolerance; `aux_loss` is Eq. 5; `learning_rate`, `momentum` and `regularizer_weight` are
    the learned scalars, if the layer has them. Empty sets, which fill up a batch, do not count.

    Example:
        >>> layer = equipool.EquilibriumAggregation(3, 8)
        >>> statistics = inner_statistics(layer, lambda: layer(torch.ones(5, 3)))
        >>> round(statistics["layer"]["momentum"], 3)
        0.9
    """
    layers = equilibrium_layers(network)
    if not layers:
        return {}
    solved: dict[str, list[Solution]] = defaultdict(list)
    with ExitStack() as stack:
        stack.enter_context(evaluation_mode(network))
        solutions = stack.enter_context(equipool.record(diagnostics=True))
        for name, layer in layers.items():
            handle = layer.register_forward_hook(
                lambda *_, name=name: solved[name].append(solutions[-1])
            )
            stack.callback(handle.remove)
        forward()
        return {name: _of_layer(layer, solved[name]) for name, layer in layers.items()}


def _of_layer(layer: EquilibriumAggregation, solutions: list[Solution]) -> dict[str, float]:
    scalars: dict[str, object] = {
        "learning_rate": getattr(layer.solver, "learning_rate", None),
        "momentum": getattr(layer.solver, "momentum", None),
        "regularizer_weight": getattr(layer.regularizer, "weight", None),
    }
    found = {name: float(v) for name, v in scalars.items() if isinstance(v, Tensor)}
    some = [solution for solution in solutions if solution.occupied.any()]
    if some:
        residual = torch.cat([_occupied(one, one.residual) for one in some])
        converged = torch.cat([_occupied(one, one.converged) for one in some])
        aux_loss = torch.stack([one.aux_loss for one in some])
        found |= {
            "residual": float(residual.mean()),
            "residual_max": float(residual.max()),
            "converged": float(converged.float().mean()),
            "aux_loss": float(aux_loss.mean()),
        }
    return found


def _occupied(solution: Solution, of_sets: Tensor | None) -> Tensor:
    assert of_sets is not None  # diagnostics are on
    return of_sets[solution.occupied]
