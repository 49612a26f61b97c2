"""Settings of equilibrium aggregation, from the task to its layers."""

import pytest

from equipool import EquilibriumAggregation, LearnedStart, ZeroStart
from equipool.experiments.inner_loop import InnerLoop
from equipool.experiments.registry import MedianTask, MoleculeTask, OmniglotTask

SETTINGS = {
    "inner_learning_rate": 0.02,
    "inner_momentum": 0.5,
    "inner_max_step": 0.25,
    "inner_curvature_safe": True,
    "start_value": 1.0,
    "regularizer_weight": 0.3,
    "potential_dropout": 0.2,
}
NETWORKS = {
    "median": lambda **given: MedianTask(width=8, inner_steps=7, **given).network(),
    "omniglot": lambda **given: OmniglotTask(potential=(8, 3), inner_steps=7, **given).network(),
    "molecules": lambda **given: MoleculeTask(
        depth=2, width=8, local_aggregation="equilibrium", potential=(8, 3), inner_steps=7,
        local_steps=7, **given
    ).make_network(1, None),
}  # fmt: skip


def layers(network):
    found = [part for part in network.modules() if isinstance(part, EquilibriumAggregation)]
    assert found
    return found


@pytest.mark.parametrize("name", NETWORKS)
def test_settings_reach_every_layer(name):
    for layer in layers(NETWORKS[name](**SETTINGS)):
        assert layer.num_steps == 7
        assert layer.solver.learning_rate.item() == pytest.approx(0.02)
        assert layer.solver.momentum.item() == pytest.approx(0.5)
        assert (layer.solver.max_step, layer.solver.curvature_safe) == (0.25, True)
        assert layer.regularizer.weight.item() == pytest.approx(0.3)
        assert layer.potential.dropout == 0.2
        assert isinstance(layer.start, LearnedStart)
        assert layer.start.value == 1.0


@pytest.mark.parametrize("name", NETWORKS)
def test_unless_they_are_given_they_are_the_papers(name):
    for layer in layers(NETWORKS[name]()):
        assert layer.solver.learning_rate.item() == pytest.approx(0.125)
        assert layer.solver.momentum.item() == pytest.approx(0.9)
        assert (layer.solver.max_step, layer.solver.curvature_safe) == (None, False)
        assert layer.regularizer.weight.item() == pytest.approx(0.1)
        assert isinstance(layer.start, ZeroStart)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("inner_learning_rate", 0.0, "more than 0"),
        ("inner_momentum", 1.0, "at least 0 and less than 1"),
        ("inner_max_step", -1.0, "more than 0, or None"),
        ("regularizer_weight", -0.1, "more than 0"),
        ("potential_dropout", 1.5, "at least 0 and less than 1"),
    ],
)
def test_what_no_layer_could_have_is_refused_by_the_task(name, setting, value, expected):
    """Whatever pools, and before any data is read."""
    task = {"median": MedianTask, "omniglot": OmniglotTask, "molecules": MoleculeTask}[name]
    with pytest.raises(ValueError, match=f"{setting} is {value}, expected {expected}"):
        task("sum", **{setting: value})


def test_a_start_of_zero_is_learned_where_it_is_asked_for():
    layer = InnerLoop(start_value=0.0).equilibrium_layer(3, 4, (8, 2), 5)
    assert isinstance(layer.start, LearnedStart)
    assert (layer.in_channels, layer.out_channels, layer.num_steps) == (3, 4, 5)
    assert layer.potential.hidden == (8, 2)
