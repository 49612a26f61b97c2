"""Settings of equilibrium aggregation, from the task to its layers."""

import json
from dataclasses import asdict

import pytest

import equipool
from equipool import EquilibriumAggregation, LearnedStart, ZeroStart
from equipool.cli.train import base_values
from equipool.experiments.inner_loop import DIFFERENTIATIONS, SOLVERS, STARTS, STEPS
from equipool.experiments.registry import MedianTask, MoleculeTask, OmniglotTask
from equipool.recipes import AUX_WEIGHT
from equipool.training.config import flatten, nest, task_from_config

SETTINGS = {
    "solver": {"name": "nesterov", "learning_rate": 0.02, "momentum": 0.5,
               "max_step": 0.25, "curvature_safe": True},
    "differentiation": {"name": "truncated", "num_steps": 3},
    "start": {"name": "learned", "value": 1.0},
    "scaling": "log-mean",
    "regularizer_weight": 0.3,
    "potential_dropout": 0.2,
}  # fmt: skip
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
        assert isinstance(layer.differentiation, equipool.Truncated)
        assert layer.regularizer.weight.item() == pytest.approx(0.3)
        assert layer.scaling == "log-mean"
        assert layer.potential.dropout == 0.2
        assert isinstance(layer.start, LearnedStart)
        assert layer.start.value == 1.0


@pytest.mark.parametrize("name", NETWORKS)
def test_the_defaults_are_the_papers(name):
    for layer in layers(NETWORKS[name]()):
        assert layer.solver.learning_rate.item() == pytest.approx(0.125)
        assert layer.solver.momentum.item() == pytest.approx(0.9)
        assert (layer.solver.max_step, layer.solver.curvature_safe) == (None, False)
        assert isinstance(layer.differentiation, equipool.Unrolled)
        assert layer.regularizer.weight.item() == pytest.approx(0.1)
        assert layer.scaling == "log"
        assert isinstance(layer.start, ZeroStart)
        assert not any(linear.bias.any() for linear in layer.potential.linears)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"solver": {"name": "nesterov", "learning_rate": 0.0}}, "learning_rate is 0.0, expected"),
        ({"solver": {"name": "nesterov", "momentum": 1.0}}, "momentum is 1.0, expected at least 0"),
        ({"solver": "newto"}, "solver is 'newto', expected one of nesterov, gradient"),
        ({"solver": {"name": "newton", "momentum": 0.5}}, "newton has no parameter momentum"),
        ({"solver": {"name": "newton", "damping": "small"}}, "'small', expected a number"),
        ({"solver": {"name": "nesterov", "learnable": 1}}, "is 1, expected true or false"),
        ({"differentiation": "truncated"}, "requires the parameter num_steps"),
        ({"start": {"name": "learned", "value": None}}, "is None, expected a number"),
        ({"inner_steps": -1}, "inner_steps is -1, expected 0 or more"),
        ({"inner_steps": 1.5}, "inner_steps is 1.5, expected a number or fixed, random"),
        ({"inner_steps": "long"}, "steps is 'long', expected one of fixed, random"),
        ({"scaling": "max"}, "scaling is 'max', expected one of log, log-mean, sum, mean"),
        ({"regularizer_weight": -0.1}, "regularizer_weight is -0.1, expected more than 0"),
        ({"potential_dropout": 1.5}, "potential_dropout is 1.5, expected at least 0"),
        ({"bias_std": -1.0}, "bias_std is -1.0, expected 0 or more"),
    ],
)
def test_settings_that_no_layer_could_have_are_refused_by_the_task(name, settings, message):
    """Whatever pools, and before any data is read."""
    task = {"median": MedianTask, "omniglot": OmniglotTask, "molecules": MoleculeTask}[name]
    with pytest.raises(ValueError, match=message):
        task("sum", **settings)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("preset", [None, "quick", "paper"])
def test_the_recipe_is_that_of_the_library(name, preset):
    values = base_values(name, preset, "converging")
    task = task_from_config({"task": name, "fields": values["fields"]})
    expected = equipool.converging()
    network = task.make_network(1, None) if name == "molecules" else task.network()
    for layer in layers(network):
        assert repr(layer.solver) == repr(expected["solver"])
        assert layer.solver.learning_rate.item() == expected["solver"].learning_rate.item()
        assert layer.regularizer.weight.item() == expected["regularizer"].weight.item()
        assert layer.scaling == expected["scaling"]
        assert repr(layer.differentiation) == repr(expected["differentiation"])
        assert layer.steps == expected["steps"]
    if name == "molecules":
        assert (task.readout_aux_weight, task.local_aux_weight) == (AUX_WEIGHT, AUX_WEIGHT)
    assert values["training"]["aux_weight"] == (0 if name == "molecules" else AUX_WEIGHT)


def test_a_layer_that_searches_to_a_tolerance():
    rule = {"name": "to-tolerance", "tolerance": 0.01, "max_steps": 30}
    (layer,) = layers(MedianTask(inner_steps=rule, width=4).network())
    assert layer.steps == equipool.ToTolerance(tolerance=0.01, max_steps=30)


def test_parts_of_parts():
    newton = SOLVERS.build({"name": "newton", "after": {"name": "gradient-descent"}})
    assert isinstance(newton.after, equipool.GradientDescent)
    implicit = DIFFERENTIATIONS.build({"name": "implicit", "linear_solver": "cholesky"})
    assert isinstance(implicit.linear_solver, equipool.Cholesky)
    assert isinstance(STARTS.build("learned", {"out_channels": 3}), LearnedStart)
    assert STEPS.build("fixed").num_steps == 10


@pytest.mark.parametrize("field", SETTINGS)
def test_flat_fields_are_what_was_nested(field):
    task = MedianTask(**{field: SETTINGS[field]})
    flat = flatten(asdict(task))
    assert all(not isinstance(value, dict) for value in flat.values())
    assert MedianTask(**nest(json.loads(json.dumps(flat)))) == task
    assert hash(task) == hash(MedianTask(**nest(flat)))
