"""The page's engine computes what the layer computes. Node runs the script of the built page."""

import pytest
import torch
from explorer_engine import close, needs_node, run_engine
from torch import nn

import equipool
import known_minima
from cases import SCALINGS
from equipool import (
    EquilibriumAggregation,
    GradientDescent,
    LearnedStart,
    Nesterov,
    ResNetPotential,
    SquaredNorm,
    ToTolerance,
)
from equipool.baselines.learned import AttentionPooling, GatedAttentionPooling
from equipool.baselines.reductions import MaxPooling, MeanPooling, SumPooling
from equipool.explore.describe import describe_aggregation, describe_network
from equipool.potentials import FrechetMean
from known_minima import Sum, descent

SOLVERS = [
    GradientDescent(0.05),
    Nesterov(0.05, 0.5),
    Nesterov(0.1, 0.5, max_step=0.3, curvature_safe=True),
    Nesterov(0.1, 0.7, max_step=0.5),
]


def random_layers():
    """One layer per solver, with different sizes, scalings, reductions, starts and budgets."""
    torch.manual_seed(0)
    for number, solver in enumerate(SOLVERS):
        channels, size = 1 + number, 1 + number % 3
        hidden = (6, 6, 4) if number % 2 else (5, 7, size)
        potential = ResNetPotential(channels, size, hidden, reduction=("mean", "sum")[number % 2])
        for norm in potential.norms:
            nn.init.normal_(norm.weight, 1.0, 0.2)
            nn.init.normal_(norm.bias, 0.0, 0.2)
        yield EquilibriumAggregation(
            channels, size, potential=potential, regularizer=SquaredNorm(0.3), solver=solver,
            scaling=SCALINGS[number % 4],
            start=LearnedStart(size, value=0.5) if number == 1 else None,
            steps=ToTolerance(1e-3, 300) if number == 2 else 12,
        ).double().eval()  # fmt: skip


KNOWN = {
    "mean": (known_minima.mean(2, learning_rate=0.1, num_steps=5), {"kind": "mean"}),
    "median": (known_minima.median(2, num_steps=50), {"kind": "median"}),
    "quantile": (known_minima.quantile(2, 0.8, num_steps=50), {"kind": "quantile", "tau": 0.8}),
    "huber": (known_minima.huber(2, 0.4, num_steps=20), {"kind": "huber", "delta": 0.4}),
    "sum": (
        descent(Sum(), 2, 2, 0.3, 5, regularizer=SquaredNorm(0.5), scaling="sum"),
        {"kind": "sum"},
    ),
    "distance": (
        descent(
            FrechetMean(lambda x, y: torch.linalg.vector_norm(x - y, dim=-1).sqrt()),
            2, 2, 0.1, 5, start=LearnedStart(2, value=1.5, learnable=False),
        ),
        {"kind": "distance"},
    ),
    "max": (known_minima.maximum(2, learning_rate=0.1, num_steps=9), {"kind": "max"}),
}  # fmt: skip


def replace_potential(layer):
    """A layer that can be described, with the same settings."""
    return EquilibriumAggregation(
        2, 2, potential=ResNetPotential(2, 2, (4, 2)), regularizer=layer.regularizer,
        solver=layer.solver, start=layer.start, steps=layer.steps, scaling=layer.scaling,
    )  # fmt: skip


@needs_node
def test_outputs_energies_and_gradients_are_those_of_the_layer():
    layers = [(layer, describe_aggregation(layer)) for layer in random_layers()]
    for layer, potential in KNOWN.values():
        data = describe_aggregation(replace_potential(layer)) | {"potential": potential}
        layers.append((layer.double(), data))
    cases, expected = [], []
    for layer, data in layers:
        x = torch.randn(5, layer.in_channels, dtype=torch.float64)
        y = torch.randn(1, layer.out_channels, dtype=torch.float64, requires_grad=True)
        energy = layer.energy(x)(y)
        expected.append((layer.solve(x), energy, torch.autograd.grad(energy.sum(), y)[0]))
        cases.append({"method": "solve", "layer": data, "x": x.tolist(), "y": y[0].tolist()})
    found = run_engine(cases)
    for one, (solution, energy, gradient) in zip(found, expected, strict=True):
        close(one["y"], solution.y[0].detach())
        close(one["energy"], energy[0].detach())
        close(one["gradient"], gradient[0])
    # It is the third that stops at a tolerance.
    assert found[2]["steps"] == expected[2][0].num_steps.item() < 300


@needs_node
def test_networks_predict_the_same():
    torch.manual_seed(0)
    poolings = [
        EquilibriumAggregation(6, 4, **equipool.converging()),
        AttentionPooling(6, 4),
        AttentionPooling(6, 5),
        GatedAttentionPooling(6, 4),
        SumPooling(6, 6, scale=0.1),
        MeanPooling(6, 4),
        MaxPooling(6, 4),
    ]
    cases, expected = [], []
    for pooling in poolings:
        norm = nn.LayerNorm(6)
        nn.init.normal_(norm.weight)
        encoder = nn.Sequential(nn.Linear(3, 6), nn.GELU(), nn.Dropout(0.5), norm, nn.SiLU())
        size = pooling.out_channels
        head = nn.Sequential(nn.Linear(size, 5), nn.Tanh(), nn.Linear(5, 2, bias=False), nn.ReLU())
        for part in (encoder, pooling, head):
            part.double().eval()
        x = torch.randn(5, 3, dtype=torch.float64)
        expected.append(head(pooling(encoder(x)))[0].detach())
        network = describe_network(encoder, pooling, head)
        cases.append({"method": "predict", "network": network, "x": x.tolist()})
    for found, prediction in zip(run_engine(cases), expected, strict=True):
        close(found, prediction)


@needs_node
@pytest.mark.parametrize("scaling", SCALINGS)
def test_influence_is_that_of_the_library(scaling):
    torch.manual_seed(0)
    layer = EquilibriumAggregation(
        3, 2, regularizer=SquaredNorm(2.0), scaling=scaling,
        solver=Nesterov(0.1, 0.5, curvature_safe=True),
        steps=ToTolerance(1e-7, max_steps=5000),
    ).double().eval()  # fmt: skip
    sets = [torch.randn(n, 3, dtype=torch.float64) for n in (1, 2, 6)]
    data = describe_aggregation(layer)
    cases = [{"method": "influence", "layer": data, "x": x.tolist()} for x in sets]
    for x, found in zip(sets, run_engine(cases), strict=True):
        for method in ("newton", "exact"):
            expected = equipool.influence(layer, x, method=method).change
            assert expected.isfinite().all()
            close(found[method], expected)


def test_what_the_page_cannot_compute_is_named():
    layer = EquilibriumAggregation(3, 2, potential=equipool.ConvexPotential(3, 2))
    with pytest.raises(ValueError, match="cannot compute ConvexPotential"):
        describe_aggregation(layer)
    with pytest.raises(ValueError, match="cannot compute Bilinear"):
        describe_network(nn.Bilinear(2, 2, 2), MeanPooling(2, 2), nn.Identity())
    with pytest.raises(ValueError, match="clip_value"):
        describe_aggregation(EquilibriumAggregation(3, 2, solver=Nesterov(clip_value=1.0)))
