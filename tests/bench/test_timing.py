import time

import pytest
import torch

from equipool.bench.timing import Budget, summarize, time_step, with_peak_memory

CPU = torch.device("cpu")


def test_summary_of_known_times():
    timing = summarize([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (timing.fastest, timing.lower_quartile, timing.median) == (1.0, 2.0, 3.0)
    assert (timing.upper_quartile, timing.slowest, timing.repeats) == (4.0, 5.0, 5)


def test_one_time_is_its_own_summary():
    timing = summarize([2.5])
    assert timing.median == timing.slowest == timing.lower_quartile == 2.5
    assert timing.repeats == 1


def test_a_step_runs_as_often_as_said():
    calls = []
    timing = time_step(lambda: calls.append(1), CPU, Budget(seconds=0.0, repeats=4, warmup=3))
    assert timing.repeats == 4
    assert len(calls) == 3 + 1 + 4


def test_times_are_milliseconds():
    timing = time_step(lambda: time.sleep(0.02), CPU, Budget(seconds=0.0, repeats=3))
    assert timing.fastest >= 20


def test_peak_memory_counts_what_is_held_at_the_same_time():
    """Two of three tensors overlap, and what the step was built of counts."""

    def build():
        kept = torch.zeros(1000, 1000)

        def step():
            first = kept + 1
            del first
            second = kept + 2
            return second.sum()

        return step

    step, peak = with_peak_memory(build, CPU)
    assert peak == pytest.approx(8e6, rel=0.01)
    assert float(step()) == 2e6


@pytest.mark.gpu
def test_times_and_memory_on_the_device():
    device = torch.device("cuda")

    def build():
        a = torch.zeros(1024, 1024, device=device)
        return lambda: a + 1

    step, peak = with_peak_memory(build, device)
    assert peak == 2 * 4 * 2**20
    assert time_step(step, device, Budget(seconds=0.0, repeats=3)).fastest > 0
