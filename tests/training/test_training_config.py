"""What a run is identified by, and schedules against closed formulas."""

import json
import math

import pytest
from toy import Fed, Toy, config

from equipool.training import TrainingConfig
from equipool.training.config import (
    FREE,
    SHAPES,
    differences,
    differences_of_choice,
    run_config,
    task_from_config,
    training_from_config,
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", 0), ("learning_rate", 0.0), ("learning_rate", math.nan), ("clip_norm", math.inf),
        ("guard_factor", 1.0), ("ema_decay", 1.0), ("precision", "16-mixed"), ("aux_start", 1.0),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_named(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value!r}, expected"):
        config(**{name: value})


def test_a_config_comes_back_from_json():
    task, training = Toy(seed=3, broken_steps=(1, 2)), config(steps=7)
    content = json.loads(json.dumps(run_config(task, training)))
    assert content.keys() == {"task", "fields", "training"}
    assert differences(content, run_config(task, training)) == []
    assert task_from_config(content) == task
    assert training_from_config(content) == training


def test_what_is_known_of_the_data_belongs_to_a_run(monkeypatch):
    saved = run_config(Fed(), config())
    assert saved["data"] == {"rows": 3, "columns": ["a", "b"]}
    assert differences(saved, run_config(Fed(), config())) == []
    monkeypatch.setattr(Fed, "rows", 4)
    given = run_config(Fed(), config())
    assert differences(saved, given) == ["data.rows: 3 in the run, 4 here"]
    assert differences_of_choice(saved, given) == []
    assert differences_of_choice(saved, run_config(Fed(seed=1), config())) == [
        "task.seed: 0 in the run, 1 here"
    ]


def test_what_changes_no_number_may_differ():
    changed = {"capture": False, "compile": True, "checkpoint_every": 3}
    changed |= {"keep_last": 4}
    assert changed.keys() == set(FREE)
    assert differences(run_config(Toy(), config()), run_config(Toy(), config(**changed))) == []


def test_a_task_that_is_not_known_is_named_with_those_that_are():
    with pytest.raises(ValueError, match=r"task is 'tuy', expected one of .*'toy'"):
        task_from_config({"task": "tuy", "fields": {}})


def test_a_subclass_does_not_take_the_name_that_it_inherits():
    class Changed(Toy):
        pass

    assert Changed.name == Toy.name
    assert type(task_from_config({"task": Toy.name, "fields": {}})) is Toy


STEPS, WARMUP, FINAL = 50, 10, 0.1

FORMULAS = {
    "constant": lambda p: 1.0,
    "cosine": lambda p: math.cos(math.pi * p / 2) ** 2,
    "linear": lambda p: 1 - p,
    "trapezoid": lambda p: 1.0 if p <= 0.8 else 5 * (1 - p),
}


def factors(shape, warmup=WARMUP, final=0.0):
    made = TrainingConfig(STEPS, schedule=shape, warmup_steps=warmup, final_learning_rate=final)
    return [made.learning_rate_factor(step) for step in range(STEPS)]


@pytest.mark.parametrize("shape", SHAPES)
def test_after_the_warm_up_it_is_the_formula(shape):
    assert FORMULAS.keys() == SHAPES.keys()
    for step, factor in list(enumerate(factors(shape, final=FINAL)))[WARMUP:]:
        expected = FORMULAS[shape]((step - WARMUP) / (STEPS - WARMUP))
        assert factor == pytest.approx(FINAL + (1 - FINAL) * expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_it_rises_linearly_to_one_and_no_step_is_without_learning(shape):
    found = factors(shape)
    assert found[:WARMUP] == pytest.approx([(step + 1) / 10 for step in range(WARMUP)])
    assert min(found) > 0


@pytest.mark.parametrize("warmup", [STEPS, STEPS + 5])
def test_a_warm_up_as_long_as_the_run_is_a_warm_up(warmup):
    assert factors("cosine", warmup)[-1] == pytest.approx(STEPS / warmup)


def aux_weights(**settings):
    made = TrainingConfig(steps=10, aux_weight=1e-2, **settings)
    return [made.aux_weight_at(step) for step in range(12)]


def test_the_weight_of_the_auxiliary_loss():
    assert aux_weights() == [1e-2] * 12
    assert aux_weights(aux_start=0.5) == [0.0] * 5 + [1e-2] * 7
    rising = [1e-4 * 10 ** (step / 5) for step in range(10)]
    assert aux_weights(aux_initial=1e-4) == pytest.approx([*rising, 1e-2, 1e-2])
    late = [0.0] * 5 + [1e-4 * 10 ** (step / 2.5) for step in range(5)]
    assert aux_weights(aux_initial=1e-4, aux_start=0.5) == pytest.approx([*late, 1e-2, 1e-2])
