"""What a run is identified by, and schedules against closed formulas."""

import json
import math

import pytest
from toy import Toy, config

from equipool.training import TrainingConfig
from equipool.training.config import (
    differences,
    run_config,
    task_from_config,
    training_from_config,
)


@pytest.mark.parametrize(
    ("name", "value"),
    [("steps", 0), ("learning_rate", math.nan), ("clip_norm", 0.0), ("precision", "16-mixed")],
)
def test_a_value_out_of_range_is_named(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value!r}, expected"):
        config(**{name: value})


def test_a_config_comes_back_from_json():
    task, training = Toy(seed=3, broken_step=1), config(steps=7)
    content = json.loads(json.dumps(run_config(task, training)))
    assert content.keys() == {"task", "fields", "training"}
    assert differences(content, run_config(task, training)) == []
    assert task_from_config(content) == task
    assert training_from_config(content) == training


def test_what_changes_no_number_may_differ():
    changed = {"capture": False, "compile": True, "checkpoint_every": 3}
    assert differences(run_config(Toy(), config()), run_config(Toy(), config(**changed))) == []


def test_a_task_that_is_not_known_is_named_with_those_that_are():
    with pytest.raises(ValueError, match=r"task is 'tuy', expected one of .*'toy'"):
        task_from_config({"task": "tuy", "fields": {}})


def test_a_subclass_does_not_take_the_name_that_it_inherits():
    class Changed(Toy):
        pass

    assert Changed.name == Toy.name
    assert type(task_from_config({"task": Toy.name, "fields": {}})) is Toy


STEPS, WARMUP = 50, 10


def rates(schedule, warmup=WARMUP):
    made = TrainingConfig(STEPS, learning_rate=0.5, schedule=schedule, warmup_steps=warmup)
    return [2 * made.learning_rate_at(step) for step in range(STEPS)]


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_it_rises_linearly_to_one_and_falls_as_the_formula_says(schedule):
    found = rates(schedule)
    assert found[:WARMUP] == pytest.approx([(step + 1) / 10 for step in range(WARMUP)])
    falls = math.pi / 2 if schedule == "cosine" else 0.0
    expected = [math.cos(falls * step / (STEPS - WARMUP)) ** 2 for step in range(STEPS - WARMUP)]
    assert found[WARMUP:] == pytest.approx(expected)
    assert min(found) > 0


def aux_weights(**settings):
    made = TrainingConfig(steps=10, aux_weight=1e-2, **settings)
    return [made.aux_weight_at(step) for step in range(12)]


def test_the_weight_of_the_auxiliary_loss():
    assert aux_weights() == [1e-2] * 12
    rising = [1e-4 * 10 ** (step / 5) for step in range(10)]
    assert aux_weights(aux_initial=1e-4) == pytest.approx([*rising, 1e-2, 1e-2])
    with pytest.raises(ValueError, match=r"aux_initial is 0\.1, expected None"):
        TrainingConfig(steps=10, aux_weight=0.0, aux_initial=0.1)
