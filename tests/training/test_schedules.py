"""Schedules against closed formulas."""

import math

import pytest

from equipool.training import TrainingConfig
from equipool.training.config import SHAPES, Schedule

STEPS, WARMUP, FINAL = 50, 10, 0.1

FORMULAS = {
    "constant": lambda p: 1.0,
    "cosine": lambda p: math.cos(math.pi * p / 2) ** 2,
    "linear": lambda p: 1 - p,
    "trapezoid": lambda p: 1.0 if p <= 0.8 else 5 * (1 - p),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_after_the_warm_up_it_is_the_formula(shape):
    schedule = Schedule(shape, STEPS, WARMUP, FINAL)
    for step in range(WARMUP, STEPS):
        expected = FORMULAS[shape]((step - WARMUP) / (STEPS - WARMUP))
        assert schedule(step) == pytest.approx(FINAL + (1 - FINAL) * expected)


def test_every_shape_has_its_formula_here():
    assert FORMULAS.keys() == SHAPES.keys()


@pytest.mark.parametrize("shape", SHAPES)
def test_it_rises_linearly_to_one_and_no_step_is_without_learning(shape):
    schedule = Schedule(shape, STEPS, WARMUP)
    assert [schedule(step) for step in range(WARMUP)] == pytest.approx(
        [(step + 1) / 10 for step in range(WARMUP)]
    )
    assert all(schedule(step) > 0 for step in range(STEPS))


@pytest.mark.parametrize("warmup", [STEPS, STEPS + 5])
def test_a_warm_up_as_long_as_the_run_is_a_warm_up(warmup):
    schedule = Schedule("cosine", STEPS, warmup)
    assert schedule(STEPS - 1) == pytest.approx(STEPS / warmup)


def test_an_unknown_name_lists_the_known():
    with pytest.raises(ValueError, match=r"schedule is 'cosin', expected .*'constant', 'cosine'"):
        TrainingConfig(steps=1, schedule="cosin")
    with pytest.raises(ValueError, match="schedule is 'cosin'"):
        Schedule("cosin", 1)
