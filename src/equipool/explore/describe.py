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

LIMITS = ("max_step", "curvature_safe")  # of a solver's steps

REDUCTIONS: dict[type, str] = {SumPooling: "sum", MeanPooling: "mean", MaxPooling: "max"}
ACTIVATIONS = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.GELU: "gelu", nn.SiLU: "silu"}
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
    raise _unsupported(module)


def describe_aggregation(aggregation: nn.Module) -> Data:
    """A pooling layer."""
    if isinstance(aggregation, EquilibriumAggregation):
        return _describe_layer(aggregation)
    if isinstance(aggregation, AttentionPooling):
        parts = {name: _affine(getattr(aggregation, name)) for name in ("keys", "values")}
        return {"kind": "attention", "query": numbers(aggregation.query), **parts}
    if isinstance(aggregation, GatedAttentionPooling):
        parts = {name: _affine(getattr(aggregation, name)) for name in ("content", "gate", "score")}
        return {"kind": "gated-attention", **parts, "linear": _matched(aggregation.linear)}
    if kind := REDUCTIONS.get(type(aggregation)):
        one: Any = aggregation
        scale = {"scale": one.scale} if kind == "sum" else {}
        return {"kind": kind, "linear": _matched(one.linear)} | scale
    raise _unsupported(aggregation)


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
        raise _unsupported(potential)
    norms = [*map(_norm, potential.norms), None]
    blocks = [
        {"linear": _affine(linear), "norm": norm, "skip": _matched(skip)}
        for linear, norm, skip in zip(potential.linears, norms, potential.skips, strict=True)
    ]
    return {"kind": "resnet", "reduction": potential.reduction, "blocks": blocks}


def _describe_solver(solver: Solver[Any]) -> Data:
    if type(solver) not in (Nesterov, GradientDescent):  # a subclass may step in another way
        raise _unsupported(solver)
    one: Any = solver
    rate, momentum = numbers(one.learning_rate), numbers(one.momentum)
    if one.gtol > 0 or one.clip_value is not None or (momentum and type(one) is GradientDescent):
        raise _unsupported(solver)
    if isinstance(solver, GradientDescent):
        return {"kind": "gradient-descent", "learning_rate": rate}
    data = {"kind": "nesterov", "learning_rate": rate, "momentum": momentum}
    limits = {name: getattr(solver, name) for name in LIMITS}
    return data | {"kind": "bounded-nesterov", **limits} if any(limits.values()) else data


def _regularizer_weight(regularizer: Regularizer) -> Any:
    if isinstance(regularizer, SquaredNorm):
        return numbers(regularizer.weight)
    raise _unsupported(regularizer)


def _start(start: Start, channels: int) -> Any:
    if isinstance(start, ZeroStart | NormalStart):
        return [0] * channels
    if isinstance(start, LearnedStart):
        return numbers(start.y)
    raise _unsupported(start)


def _affine(linear: nn.Module) -> Data:
    assert isinstance(linear, nn.Linear)
    bias: Tensor | None = linear.bias
    return {"weight": numbers(linear.weight), "bias": None if bias is None else numbers(bias)}


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


def _unsupported(found: object) -> ValueError:
    return ValueError(f"the page cannot compute {found!r}")
