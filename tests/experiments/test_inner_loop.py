"""Settings of equilibrium aggregation, from the task to its layers."""

import pytest

import equipool
from equipool import EquilibriumAggregation
from equipool.cli.train import base_values, build
from equipool.experiments.median import MedianTask
from equipool.experiments.molecules.task import MoleculeTask
from equipool.experiments.omniglot.task import OmniglotTask
from equipool.recipes import AUX_WEIGHT

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
    for layer in layers(NETWORKS[name](start="learned:value=1.0", potential_dropout=0.2)):
        assert layer.steps == equipool.FixedSteps(7)
        assert layer.potential.dropout == 0.2
        assert layer.start.value == 1.0
        # what is not said is the paper's
        assert (layer.solver.learning_rate.item(), layer.scaling) == (0.125, "log")
        assert layer.solver.momentum.item() == pytest.approx(0.9)
        assert layer.regularizer.weight.item() == pytest.approx(0.1)
        assert isinstance(layer.differentiation, equipool.Unrolled)


@pytest.mark.parametrize(
    ("task", "settings", "expected"),
    [
        (MedianTask, {"solver": "nesterov:learning_rate=0.0"}, "learning_rate is 0.0"),
        (MedianTask, {"differentiation": "truncated"}, "truncated: .*num_steps"),
        (OmniglotTask, {"max_classes": 30}, "max_classes is 30, expected at most 16"),
        (OmniglotTask, {"validation_characters": 2}, "validation_characters is 2"),
        (MoleculeTask, {"batch_size": 1}, "batch_size is 1"),
        (MoleculeTask, {"convolution": "gat"}, "convolution is 'gat'"),
        (MoleculeTask, {"labels": "a,b"}, "labels is 'a,b'"),
        (MoleculeTask, {"split": "random"}, "split is 'random'"),
    ],
)
def test_a_task_refuses_what_cannot_be(task, settings, expected):
    """Before any data is read."""
    with pytest.raises(ValueError, match=expected):
        task(**settings)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("preset", [None, "quick"])
def test_the_recipe_is_that_of_the_library(name, preset):
    task, training = build(name, {"steps": 1} | base_values(name, preset, "converging"))
    expected = equipool.converging()
    network = task.make_network(1, None) if name == "molecules" else task.network()
    for layer in layers(network):
        assert layer.solver.learning_rate.item() == expected["solver"].learning_rate.item()
        assert layer.regularizer.weight.item() == expected["regularizer"].weight.item()
        for part in ("solver", "scaling", "differentiation", "steps"):
            assert repr(getattr(layer, part)) == repr(expected[part])
    if name == "molecules":
        assert (task.readout_aux_weight, task.local_aux_weight) == (AUX_WEIGHT, AUX_WEIGHT)
    assert training.aux_weight == (0 if name == "molecules" else AUX_WEIGHT)
