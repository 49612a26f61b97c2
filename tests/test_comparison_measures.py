"""How near two gradients are, and what taking one costs."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import equipool
from equipool.comparison import Agreement, Seconds, compare_gradients, measure
from equipool.comparison.measure import agreement, peak_bytes_of, seconds_of

CPU = torch.device("cpu")


class TestAgreement:
    @given(st.lists(st.tuples(*[st.floats(-5, 5)] * 2), min_size=1, max_size=6), st.floats(0.1, 9))
    def test_of_a_multiple(self, pairs, factor):
        vector = torch.tensor([a for a, _ in pairs], dtype=torch.float64) + 6
        found = agreement(factor * vector, vector)
        assert found.cosine == pytest.approx(1)
        assert found.relative_error == pytest.approx(abs(factor - 1), abs=1e-12)
        assert agreement(-vector, vector).cosine == pytest.approx(-1)

    def test_of_vectors_whose_squares_are_out_of_range(self):
        large = torch.tensor([3e200, 4e200], dtype=torch.float64)
        assert agreement(large, large / 1e300) == Agreement(pytest.approx(1), pytest.approx(1e300))
        assert agreement(large / 1e300, large).relative_error == pytest.approx(1)

    def test_of_zero(self):
        zero, one = torch.zeros(2), torch.ones(2)
        assert agreement(zero, zero) == Agreement(1.0, 0.0)
        assert agreement(zero, one) == Agreement(0.0, 1.0)
        assert agreement(one, zero) == Agreement(0.0, math.inf)
        assert agreement(torch.zeros(0), torch.zeros(0)) == Agreement(1.0, 0.0)

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_of_what_is_not_finite(self, bad):
        for pair in ((torch.tensor([bad]), torch.ones(1)), (torch.ones(1), torch.tensor([bad]))):
            assert math.isnan(agreement(*pair).cosine)
            assert math.isnan(agreement(*pair).relative_error)


class TestCost:
    def test_peak_memory_is_the_most_held_at_a_time(self):
        def step():
            first = torch.empty(10**6, dtype=torch.uint8)
            second = torch.empty(2 * 10**6, dtype=torch.uint8)
            del first
            third = torch.empty(5 * 10**5, dtype=torch.uint8)
            del second, third

        assert peak_bytes_of(step, CPU) == pytest.approx(3 * 10**6, rel=0.01)

    def test_peak_memory_does_not_count_what_was_there(self):
        held = torch.ones(10**6)
        peak = peak_bytes_of(lambda: (held * 2, held * 3), CPU)
        assert peak == pytest.approx(8 * 10**6, rel=0.01)

    def test_memory_of_unrolling_grows_where_every_step_is_kept(self):
        """Left to automatic differentiation, a step keeps its activations."""
        torch.manual_seed(0)
        layer = equipool.EquilibriumAggregation(
            3, 4, potential=equipool.ResNetPotential(3, 4, (16, 8, 4), factored=False)
        )
        x = torch.randn(200, 3)
        methods = [equipool.Unrolled(), equipool.OneStep(), equipool.Truncated(2)]
        few, many = (
            [row.peak_bytes for row in compare_gradients(layer, x, methods=methods, repeats=1).rows]
            for layer.num_steps in (2, 12)
        )
        assert many[0] > 3 * few[0]
        assert all(a < 1.2 * b for a, b in zip(many[1:], few[1:], strict=True))

    def test_time_is_the_median_of_the_repeats(self, monkeypatch):
        clock = iter([0.0, 5.0, 10.0, 11.0, 20.0, 22.0])
        monkeypatch.setattr(measure.time, "perf_counter", lambda: next(clock))
        calls = []
        found = Seconds.of(seconds_of(lambda: calls.append(1), CPU, repeats=3))
        assert found == Seconds(median=2.0, fastest=1.0, slowest=5.0)
        assert len(calls) == 3
