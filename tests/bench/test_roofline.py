import pytest
import torch
from equipool.bench.roofline import (
    floor,
    hidden_products,
    least_bytes,
    measure_rates,
    multiply_adds,
)

from equipool.bench.cases import Case
from equipool.bench.record import Rates

SIZES = (600, 300, 32)
P = 600 * 332 + 300 * 32
H, C, K = 932, 300, 300


def case(sets: int, steps: int) -> Case:
    return Case(sets, 26, C, K, SIZES, steps)


def test_products_of_the_papers_sizes():
    assert hidden_products(SIZES) == P == 208_800
    assert hidden_products((5,)) == 0


def test_a_gradient_multiplies_each_element_twice_by_the_hidden_matrices():
    one, two = (multiply_adds(case(1, 3), n, "inference") for n in (10, 11))
    assert two - one == 3 * 2 * P + H * C


def test_training_adds_six_times_as_much():
    one, two = (multiply_adds(case(1, 3), n, "training") for n in (10, 11))
    assert two - one == 3 * (2 + 6) * P + 3 * H * C


@pytest.mark.parametrize(("mode", "products"), [("inference", 2), ("training", 2 + 5)])
def test_a_set_costs_the_products_with_y(mode, products):
    one, two = (multiply_adds(case(sets, 3), 10, mode) for sets in (1, 2))
    assert two - one == 3 * products * H * K


def test_large_batch_of_the_goals():
    operations = 2 * multiply_adds(case(2048, 15), 2048 * 26, "training")
    assert operations == pytest.approx(2.65e12, rel=0.1)


def test_least_traffic():
    assert least_bytes(case(1, 3), 10, "inference") == 4 * 10 * (3 * H + C + H)
    assert least_bytes(case(1, 3), 10, "training") == 4 * 10 * (3 * 4 * H + 2 * (C + H))


def test_floor_is_counts_over_rates():
    rates = Rates("float32", square_tflops=2.0, shaped_tflops=1.0, copy_gb_per_s=10.0)
    found = floor(case(2, 3), 50, "training", rates)
    operations = multiply_adds(case(2, 3), 50, "training")
    assert found.multiply_adds == operations
    assert found.arithmetic_ms == pytest.approx(2 * operations / 2e12 * 1e3)
    assert found.traffic_ms == pytest.approx(found.bytes / 10e9 * 1e3)


def test_rates_are_measured():
    rates = measure_rates("float32", torch.device("cpu"))
    assert rates.square_tflops > 0
    assert rates.copy_gb_per_s > 0
