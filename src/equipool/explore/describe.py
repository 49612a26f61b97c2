"""Networks as plain data, from which the page computes them in JavaScript."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from equipool.aggregation import EquilibriumAggregation
from equipool.baselines.learned import AttentionPooling, GatedAttentionPooling
from equipool.baselines.reductions import MaxPooling, MeanPooling, SumPooling
from equipool.estimators.training import SharedDropout
from equipool.potentials import ResNetPotential
from equipool.regularizers import Regularizer, SquaredNorm
from equipool.solvers import GradientDescent, Nesterov, Solver
from equipool.starts import LearnedStart, NormalStart, Start, ZeroStart

DIGITS = 8  # of a number: float32 has fewer

Data = dict[str, Any]

ACTIVATIONS: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.Tanh: "tanh",
    nn.GELU: "gelu",
    nn.SiLU: "silu",
}
SILENT = (nn.Identity, nn.Dropout, SharedDropout)  # modules that compute nothing in evaluation


def numbers(tensor: Tensor) -> Any:
    """A tensor as nested lists of rounded numbers.

    Example:
        >>> numbers(torch.tensor([[0.1, 2.0]]))
        [[0.1, 2]]
    """

    def rounded(value: Any) -> Any:
        if isinstance(value, list):
            return [rounded(entry) for entry in value]
        short = float(f"{value:.{DIGITS}g}")
        return int(short) if short.is_integer() and abs(short) < 1e15 else short

    return rounded(tensor.detach().to("cpu", torch.float64).tolist())


def describe_network(encoder: nn.Module, aggregation: nn.Module, head: nn.Module) -> Data:
    """`head(aggregation(encoder(x)))` as the page reads it.

    Raises:
        ValueError: if the page cannot compute one of the modules.

    Example:
        >>> layer = equipool.EquilibriumAggregation(3, 8)
        >>> data = describe_network(torch.nn.ReLU(), layer, torch.nn.Linear(8, 1))
        >>> data["encoder"], data["aggregation"]["kind"], data["head"][0]["kind"]
        ([{'kind': 'relu'}], 'equilibrium', 'linear')
    """
    return {
        "encoder": describe_modules(encoder),
        "aggregation": describe_aggregation(aggregation),
        "head": describe_modules(head),
    }


def describe_modules(module: nn.Module) -> list[Data]:
    """The maps that a module applies one after the other."""
    if isinstance(module, SILENT):
        return []
    if isinstance(module, nn.Sequential):
        return [data for part in module for data in describe_modules(part)]
    if isinstance(module, nn.Linear):
        return [{"kind": "linear", **_affine(module)}]
    if isinstance(module, nn.LayerNorm):
        return [{"kind": "layer-norm", **_norm(module)}]
    exact = not isinstance(module, nn.GELU) or module.approximate == "none"
    if type(module) in ACTIVATIONS and exact:
        return [{"kind": ACTIVATIONS[type(module)]}]
    known = ["Linear", "LayerNorm", "Sequential", *(kind.__name__ for kind in ACTIVATIONS)]
    raise _unsupported("module", module, known)


def describe_aggregation(aggregation: nn.Module) -> Data:
    """A pooling layer."""
    if isinstance(aggregation, EquilibriumAggregation):
        return _describe_layer(aggregation)
    if isinstance(aggregation, AttentionPooling):
        return {
            "kind": "attention",
            "query": numbers(aggregation.query),
            "keys": _affine(aggregation.keys),
            "values": _affine(aggregation.values),
        }
    if isinstance(aggregation, GatedAttentionPooling):
        parts = {name: _affine(getattr(aggregation, name)) for name in ("content", "gate", "score")}
        return {"kind": "gated-attention", **parts, "linear": _matched(aggregation.linear)}
    if isinstance(aggregation, SumPooling):
        scale = aggregation.scale
        return {"kind": "sum", "scale": scale, "linear": _matched(aggregation.linear)}
    if isinstance(aggregation, MeanPooling | MaxPooling):
        kind = "mean" if isinstance(aggregation, MeanPooling) else "max"
        return {"kind": kind, "linear": _matched(aggregation.linear)}
    known = [
        "EquilibriumAggregation",
        "AttentionPooling",
        "SumPooling",
        "MeanPooling",
        "MaxPooling",
    ]
    raise _unsupported("aggregation", aggregation, known)


def _describe_layer(layer: EquilibriumAggregation) -> Data:
    budget = layer.steps.budget(training=False)
    return {
        "kind": "equilibrium",
        "potential": _describe_potential(layer.potential),
        "regularizer": _regularizer_weight(layer.regularizer),
        "scaling": layer.scaling,
        "solver": _describe_solver(layer.solver),
        "start": _start(layer.start, layer.out_channels),
        "budget": {"num_steps": budget.num_steps, "stop_at": budget.stop_at},
    }


def _describe_potential(potential: nn.Module) -> Data:
    if type(potential) is not ResNetPotential:
        raise _unsupported("potential", potential, ["ResNetPotential"])
    norms = [*potential.norms, None]
    blocks = [
        {
            "linear": _affine(linear),
            "norm": None if norm is None else _norm(norm),
            "skip": _matched(skip),
        }
        for linear, norm, skip in zip(potential.linears, norms, potential.skips, strict=True)
    ]
    return {"kind": "resnet", "reduction": potential.reduction, "blocks": blocks}


def _describe_solver(solver: Solver[Any]) -> Data:
    known = type(solver) in (Nesterov, GradientDescent)  # a subclass may step in another way
    if not known or not isinstance(solver, Nesterov | GradientDescent):
        raise _unsupported("solver", solver, ["Nesterov", "GradientDescent"])
    if solver.gtol > 0 or solver.clip_value is not None:
        raise ValueError(f"the page cannot compute gtol or clip_value of the solver {solver!r}")
    rate, momentum = numbers(solver.learning_rate), numbers(solver.momentum)
    if isinstance(solver, GradientDescent):
        if momentum:
            raise ValueError(f"the page cannot compute the momentum of the solver {solver!r}")
        return {"kind": "gradient-descent", "learning_rate": rate}
    data = {"kind": "nesterov", "learning_rate": rate, "momentum": momentum}
    limits = {name: getattr(solver, name) for name in LIMITS}
    return data | {"kind": "bounded-nesterov", **limits} if any(limits.values()) else data


LIMITS = ("max_step", "curvature_safe")


def _regularizer_weight(regularizer: Regularizer) -> Any:
    if isinstance(regularizer, SquaredNorm):
        return numbers(regularizer.weight)
    raise _unsupported("regularizer", regularizer, ["SquaredNorm"])


def _start(start: Start, channels: int) -> Any:
    if isinstance(start, ZeroStart | NormalStart):
        return [0] * channels
    if isinstance(start, LearnedStart):
        return numbers(start.y)
    raise _unsupported("start", start, ["LearnedStart", "NormalStart"])


def _affine(linear: nn.Module) -> Data:
    assert isinstance(linear, nn.Linear)
    bias: Tensor | None = linear.bias
    return {
        "weight": numbers(linear.weight),
        "bias": None if bias is None else numbers(bias),
    }


def _matched(module: nn.Module) -> Data | None:
    """None for the identity."""
    return None if isinstance(module, nn.Identity) else _affine(module)


def _norm(norm: nn.Module) -> Data:
    assert isinstance(norm, nn.LayerNorm)
    weight: Tensor | None = norm.weight
    bias: Tensor | None = norm.bias
    (size,) = norm.normalized_shape
    return {
        "weight": [1] * size if weight is None else numbers(weight),
        "bias": [0] * size if bias is None else numbers(bias),
        "eps": norm.eps,
    }


def _unsupported(part: str, found: object, known: list[str]) -> ValueError:
    name = type(found).__name__
    return ValueError(
        f"the {part} is {name}, expected one of {known}: the page computes only these"
    )
