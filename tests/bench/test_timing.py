"""Times, memory, and the floor under them."""

import time
from dataclasses import replace

import pytest
import torch

from equipool.bench.cases import Budget, Case, make_batch
from equipool.bench.paths import PATHS
from equipool.bench.record import Rates
from equipool.bench.steps import make_step
from equipool.bench.timing import (
    allocated_bytes,
    floor,
    hidden_products,
    least_bytes,
    measure_rates,
    multiply_adds,
    peak_with_graphs,
    release_memory,
    summarize,
    time_step,
    unused_graph_bytes,
)
from equipool.capture import capture_step
from equipool.comparison.measure import peak_bytes_of

CPU = torch.device("cpu")
P = 600 * 332 + 300 * 32
H, C, K = 932, 300, 300


def case(sets: int, steps: int) -> Case:
    return Case(sets, 26, C, K, (600, 300, 32), steps)


def test_a_summary_has_the_median_and_the_spread():
    timing = summarize([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (timing.fastest, timing.lower_quartile, timing.median) == (1.0, 2.0, 3.0)
    assert (timing.upper_quartile, timing.slowest, timing.repeats) == (4.0, 5.0, 5)
    alone = summarize([2.5])
    assert alone.median == alone.slowest == alone.lower_quartile == 2.5
    assert alone.repeats == 1


@pytest.mark.parametrize(("batches", "repeats"), [(1, 4), (8, 8)])
def test_every_batch_is_timed(batches, repeats):
    calls = []
    budget = Budget(seconds=0.0, repeats=4, warmup=3)
    timing = time_step(lambda: calls.append(1), CPU, budget, batches)
    assert timing.repeats == repeats
    assert len(calls) == 3 + 1 + repeats


def test_times_are_milliseconds():
    timing = time_step(lambda: time.sleep(0.02), CPU, Budget(seconds=0.0, repeats=2, warmup=0))
    assert timing.fastest >= 20


def test_only_the_memory_of_graphs_is_added(monkeypatch):
    segments = [
        {"segment_pool_id": pool, "total_size": 100, "allocated_size": used}
        for pool, used in (((0, 0), 10), ((0, 1), 30), ([0, 2], 100))
    ]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    assert unused_graph_bytes() == 70


@pytest.mark.gpu
def test_graphs_hold_memory_that_a_replay_does_not_allocate():
    device, size = torch.device("cuda"), 8 * 2**20
    release_memory(device)
    before = allocated_bytes(device)
    a = torch.zeros(size // 4, device=device)
    step = capture_step(lambda: ((a + 1) * 2).sum())
    peak = peak_with_graphs(step, 2, device, before)
    assert 3 * size <= peak <= 6 * size


@pytest.mark.gpu
def test_the_plain_call_counts_its_graphs():
    case = Case(64, 26, 32, 32, (64, 32, 16), 5)
    device = torch.device("cuda")
    plain = PATHS["equipool"]
    launched = replace(plain, build=lambda case: without_graphs(plain.build(case)))
    found = []
    for path in (plain, launched):
        release_memory(device)
        before = allocated_bytes(device)
        step = make_step(case, make_batch(case, device), path, "training", "float32")
        for _ in range(3):
            step()
        found.append((peak_with_graphs(step, 1, device, before), unused_graph_bytes()))
        del step
    (with_graphs, unused), (_, nothing) = found
    assert nothing == 0
    assert with_graphs > unused > 0


def without_graphs(readout):
    readout.module.cuda_graphs = False
    return readout


@pytest.mark.gpu
def test_times_and_memory_on_the_device():
    device = torch.device("cuda")
    a = torch.zeros(1024, 1024, device=device)
    assert peak_bytes_of(lambda: a + 1, device) == 4 * 2**20
    assert time_step(lambda: a + 1, device, Budget(seconds=0.0, repeats=3)).fastest > 0


@pytest.mark.parametrize(
    ("mode", "by_element", "by_set", "once"), [("inference", 2, 2, 1), ("training", 8, 7, 3)]
)
def test_operations_by_element_and_by_set(mode, by_element, by_set, once):
    assert hidden_products((600, 300, 32)) == P
    one, more = (multiply_adds(case(1, 3), n, mode) for n in (10, 11))
    assert more - one == 3 * by_element * P + once * H * C
    one, more = (multiply_adds(case(sets, 3), 10, mode) for sets in (1, 2))
    assert more - one == 3 * by_set * H * K


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
    rates = measure_rates("float32", CPU)
    assert rates.square_tflops > 0
    assert rates.copy_gb_per_s > 0
