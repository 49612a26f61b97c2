r"""Operations and bytes of the layer, counted; rates of the machine, measured.

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

from collections.abc import Sequence

import torch

from equipool.bench.cases import Case, Mode, Precision
from equipool.bench.record import Floor, Rates
from equipool.bench.steps import products_in
from equipool.bench.timing import Budget, Step, time_step

FLOAT = 4  # bytes: sums and what is kept between steps are float32 in every precision


def hidden_products(hidden: Sequence[int]) -> int:
    """Multiply-adds per element in the hidden layers' matrices, $P$.

    Example:
        >>> hidden_products((600, 300, 32))
        208800
    """
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
    passes = 4 if mode == "training" else 1
    steps = case.num_steps * passes * num_elements * columns
    ends = num_elements * (case.in_channels + columns) * (2 if mode == "training" else 1)
    return float(FLOAT * (steps + ends))


def floor(case: Case, num_elements: int, mode: Mode, rates: Rates) -> Floor:
    """The shortest times of arithmetic, at the best rate that a product reached, and of traffic, at
    the rate of a copy. If they overlap perfectly, the larger one is the floor."""
    operations = multiply_adds(case, num_elements, mode)
    traffic = least_bytes(case, num_elements, mode)
    fastest = max(rates.square_tflops, rates.shaped_tflops)
    return Floor(
        multiply_adds=operations,
        bytes=traffic,
        arithmetic_ms=2 * operations / (fastest * 1e9),
        traffic_ms=traffic / (rates.copy_gb_per_s * 1e6),
    )


def measure_rates(precision: Precision, device: torch.device) -> Rates:
    """Time a large square product, one of the layer's shape, and a copy."""
    large = device.type == "cuda"
    side, rows, numbers = (8192, 53_248, 2**28) if large else (1024, 4096, 2**24)
    return Rates(
        precision=precision,
        square_tflops=_product_rate(side, side, side, precision, device),
        shaped_tflops=_product_rate(rows, 600, 332, precision, device),
        copy_gb_per_s=_copy_rate(numbers, device),
    )


def _product_rate(
    rows: int, inner: int, columns: int, precision: Precision, device: torch.device
) -> float:
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
