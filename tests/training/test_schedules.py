"""Schedules against closed formulas."""

import math

import pytest

from equipool.training import TrainingConfig
from equipool.training.config import SHAPES

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
