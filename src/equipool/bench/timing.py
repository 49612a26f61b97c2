r"""Time and memory of a step; the rates of the machine, and the least time they allow.

With layers of sizes $n_1 \dots n_L$, $H = \sum n_l$, each hidden layer feeds all layers after it,
which takes $P = \sum_j n_j \sum_{l > j} n_l$ multiply-adds per element. The factored gradient takes

| for each | gradient | its vector-Jacobian product |
|---|---|---|
| element | $2P$: forward, adjoint | $6P$: forward, tangent, two adjoints, two for the weights |
| set | $2HK$: into the network and back | $5HK$: two in, one back, two for the weights |

and once per solve $HC$ per element, with $2HC$ more in training. Both must read x's contribution to
the pre-activations, $H$ numbers per element; in training its derivative is read, added to and
written. Everything else could stay in the chip's caches.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import quantiles

import torch

from equipool.bench.cases import Budget, Case, Mode, Precision
from equipool.bench.record import Floor, Rates, Timing
from equipool.bench.steps import products_in
from equipool.comparison.measure import peak_bytes_of, seconds_of
from equipool.private_torch import clear_workspaces

Step = Callable[[], object]

MAX_REPEATS = 200
FLOAT = 4  # bytes: sums and what is kept between steps are float32 in every precision


def summarize(milliseconds: list[float]) -> Timing:
    """Median, quartiles and extremes."""
    twice = milliseconds * 2 if len(milliseconds) == 1 else milliseconds
    lower, median, upper = quantiles(twice, n=4, method="inclusive")
    extremes = min(milliseconds), max(milliseconds)
    return Timing(median, lower, upper, *extremes, repeats=len(milliseconds))


def time_step(step: Step, device: torch.device, budget: Budget, batches: int = 1) -> Timing:
    """Run a step repeatedly. If it takes several `batches` in turn, each is timed at least once
    and, on a GPU, where a new size may have to be recorded first, warmed up as often as one."""
    on_cuda = device.type == "cuda"
    for _ in range(budget.warmup * (batches if on_cuda else 1)):
        step()
    (once,) = milliseconds_of(step, device, 1)
    affordable = min(int(1000 * budget.seconds / max(once, 1e-6)), MAX_REPEATS)
    return summarize(milliseconds_of(step, device, max(budget.repeats, batches, affordable)))


def milliseconds_of(step: Step, device: torch.device, repeats: int) -> list[float]:
    """On a GPU, times between events on the device, without synchronising in between: as in a
    training loop, launching counts only where the device waits for it."""
    if device.type != "cuda":
        return [1000 * seconds for seconds in seconds_of(step, device, repeats)]
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    torch.cuda.synchronize()
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in pairwise(marks)]


def peak_with_graphs(step: Step, runs: int, device: torch.device, before: int) -> int:
    """Peak memory of several runs of a step beyond the bytes that were allocated `before`, together
    with what CUDA graphs hold: a replayed step allocates nothing."""
    held = allocated_bytes(device) - before
    peak = peak_bytes_of(lambda: [step() for _ in range(runs)], device)
    return held + peak + unused_graph_bytes()


def unused_graph_bytes() -> int:
    """The memory of CUDA graphs that no tensor has at present. Nothing else can use it."""
    segments = torch.cuda.memory_snapshot()
    return sum(
        segment["total_size"] - segment["allocated_size"]
        for segment in segments
        if tuple(segment["segment_pool_id"]) != (0, 0)
    )


def allocated_bytes(device: torch.device) -> int:
    """Memory of tensors on a GPU; 0 for the CPU, where it is not known."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def release_memory(device: torch.device) -> None:
    """Free what earlier measurements left behind."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()
        clear_workspaces()  # they would be freed by the next recording, and count as gained
        torch.cuda.empty_cache()


def hidden_products(hidden: Sequence[int]) -> int:
    """Multiply-adds per element in the hidden layers' matrices, $P$."""
    return sum(size * sum(hidden[j + 1 :]) for j, size in enumerate(hidden))


def multiply_adds(case: Case, num_elements: int, mode: Mode) -> float:
    """Multiply-adds of the whole solve in the factored form."""
    products, columns = hidden_products(case.hidden), sum(case.hidden)
    by_element, by_set, once = 2 * products, 2 * columns * case.out_channels, 1
    if mode == "training":
        by_element, by_set, once = 8 * products, 7 * columns * case.out_channels, 3
    steps = case.num_steps * (num_elements * by_element + case.sets * by_set)
    return float(steps + once * num_elements * columns * case.in_channels)


def least_bytes(case: Case, num_elements: int, mode: Mode) -> float:
    """Bytes that the whole solve must read and write."""
    columns = sum(case.hidden)
    in_steps, at_ends = (4, 2) if mode == "training" else (1, 1)
    steps = case.num_steps * in_steps * num_elements * columns
    return float(FLOAT * (steps + at_ends * num_elements * (case.in_channels + columns)))


def floor(case: Case, num_elements: int, mode: Mode, rates: Rates) -> Floor:
    """The shortest times of arithmetic, at the best rate that a product reached, and of traffic, at
    the rate of a copy. If they overlap perfectly, the larger one is the floor."""
    operations = multiply_adds(case, num_elements, mode)
    traffic = least_bytes(case, num_elements, mode)
    fastest = max(rates.square_tflops, rates.shaped_tflops)
    return Floor(
        operations, traffic, 2 * operations / (fastest * 1e9), traffic / (rates.copy_gb_per_s * 1e6)
    )


def measure_rates(precision: Precision, device: torch.device) -> Rates:
    """Time a large square product, one of the layer's shape, and a copy."""
    large = device.type == "cuda"
    side, rows, numbers = (8192, 53_248, 2**28) if large else (1024, 4096, 2**24)
    return Rates(
        precision,
        _product_rate((side, side, side), precision, device),
        _product_rate((rows, 600, 332), precision, device),
        _copy_rate(numbers, device),
    )


def _product_rate(shape: tuple[int, int, int], precision: Precision, device: torch.device) -> float:
    rows, inner, columns = shape
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a = torch.randn(rows, inner, device=device, dtype=dtype)
    b = torch.randn(inner, columns, device=device, dtype=dtype)
    with products_in(precision):
        milliseconds = _fastest(lambda: a @ b, device)
    return 2 * rows * inner * columns / (milliseconds * 1e9)


def _copy_rate(numbers: int, device: torch.device) -> float:
    source = torch.zeros(numbers, device=device)
    target = torch.empty_like(source)
    return 2 * FLOAT * numbers / (_fastest(lambda: target.copy_(source), device) * 1e6)


def _fastest(step: Step, device: torch.device) -> float:
    return time_step(step, device, Budget(seconds=0.2, repeats=5)).fastest
