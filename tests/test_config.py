"""Settings travel with the weights, and what differs is said when weights are loaded."""

import copy
import io
import warnings

import pytest
import torch
from safetensors.torch import load, save

from equipool import (
    ConvexPotential,
    EquilibriumAggregation,
    FixedSteps,
    GradientDescent,
    Implicit,
    LearnedStart,
    Nesterov,
    Newton,
    NormalStart,
    RandomSteps,
    ResNetPotential,
    SquaredNorm,
    ToTolerance,
    Truncated,
)


def layer(**options):
    return EquilibriumAggregation(3, 4, **options)


def messages_of(weights, into):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        into.load_state_dict(weights)
    return [str(one.message) for one in told]


OTHERS = {
    "steps": ({"steps": 20}, "steps.num_steps is 20 here and 10 there"),
    "policy": ({"steps": ToTolerance()}, "steps is ToTolerance"),
    "solver": ({"solver": GradientDescent(momentum=0.9)}, "solver is GradientDescent"),
    "bounded steps": ({"solver": Nesterov(max_step=0.5)}, "solver.max_step is 0.5 here and None"),
    "scaling": ({"scaling": "mean"}, "scaling is 'mean' here and 'log' there"),
    "start": ({"start": NormalStart(4)}, "start is NormalStart"),
    "potential": (
        {"potential": ResNetPotential(3, 4, reduction="sum")},
        "potential.reduction is 'sum' here and 'mean' there",
    ),
}


@pytest.mark.parametrize(("options", "expected"), OTHERS.values(), ids=OTHERS)
def test_weights_of_another_layer_load_with_one_warning(options, expected):
    (message,) = messages_of(layer().state_dict(), layer(**options))
    assert expected in message


SAME = {
    "the same": {},
    "another gradient": {"differentiation": Truncated(2)},
    "another initial weight": {"regularizer": SquaredNorm(0.7)},
    "another initial step size": {"solver": Nesterov(0.3, 0.5)},
    "dropout": {"potential": ResNetPotential(3, 4, dropout=0.5)},
}


@pytest.mark.parametrize("options", SAME.values(), ids=SAME)
def test_what_changes_no_output_of_the_weights_gives_no_warning(options):
    weights, other = layer().state_dict(), layer(**options)
    assert not messages_of(weights, other)
    x = torch.randn(5, 3)
    saved = layer()
    saved.load_state_dict(weights)
    assert torch.equal(other.eval()(x), saved.eval()(x))


def test_settings_are_read_without_pickle():
    made, file = layer(solver=Newton(after=Nesterov(), num_steps=2)), io.BytesIO()
    torch.save(made.state_dict(), file)
    file.seek(0)
    weights = torch.load(file, weights_only=True)
    for found in (weights, load(save(made.state_dict()))):
        (message,) = messages_of(found, layer(solver=Newton(after=Nesterov(gtol=0.1))))
        assert "solver.after.gtol is 0.1 here and 0.0 there; solver.num_steps is 3 here" in message


def test_config_says_what_was_constructed():
    made = layer(
        potential=ConvexPotential(3, 4, (6, 5)), regularizer=0.5, start=LearnedStart(4, 0.2),
        differentiation=Implicit("cholesky"), steps=FixedSteps(7, 1e-2), scaling="log-mean",
    )  # fmt: skip
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1)
    config = made.config()
    assert (config["in_channels"], config["out_channels"], config["scaling"]) == (3, 4, "log-mean")
    assert config["potential"] == {
        "class": "ConvexPotential", "in_channels": 3, "out_channels": 4, "hidden": [6, 5],
    }  # fmt: skip
    assert config["regularizer"]["weight"] == 0.5
    assert config["solver"]["learning_rate"] == 0.125
    assert config["steps"] == {"class": "FixedSteps", "num_steps": 7, "tolerance": 0.01}
    assert config["differentiation"]["linear_solver"] == "cholesky"
    assert config == copy.deepcopy(made).config()


def test_the_sequence_of_random_depths_goes_on_where_it_was_saved(monkeypatch):
    """With several processes the numbers come from a sequence that all of them share."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)

    def draw(one, number):
        return [one.steps.budget(training=True).num_steps for _ in range(number)]

    made = layer(steps=RandomSteps(1, 64))
    first = draw(made, 5)
    weights = made.state_dict()
    rest = draw(made, 20)
    resumed = layer(steps=RandomSteps(1, 64))
    assert draw(copy.deepcopy(resumed), 25) == first + rest
    resumed.load_state_dict(weights)
    assert draw(resumed, 20) == rest
