"""Where a training step of the layer spends its time on a GPU, kernel by kernel."""

from __future__ import annotations

from collections import defaultdict

import torch

from equipool.bench.cases import Case, Precision, make_batch
from equipool.bench.paths import PATHS
from equipool.bench.steps import LayerStep

KINDS = ("activate", "hidden_adjoints", "hidden_adjoint", "last_layer", "reduce_tiles")


def profile_layer(case: Case, precision: Precision, device: torch.device) -> dict[str, float]:
    """Microseconds by kind of kernel, of one training step with the kernels."""
    from torch.profiler import ProfilerActivity, profile

    batch = make_batch(case, device)
    readout = PATHS["triton"].build(case, batch).to(device)
    step = LayerStep(readout, batch, "training", precision, use_kernels=True)
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    totals: dict[str, float] = defaultdict(float)
    for event in profiler.key_averages():
        totals[kind_of(event.key)] += event.self_device_time_total
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


def kind_of(kernel: str) -> str:
    """Our kernels by name, matrix products together, all else as elementwise.

    Example:
        >>> kind_of("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n"), kind_of("activate")
        ('matrix products', 'activate')
    """
    if kernel in KINDS:
        return kernel
    products = ("gemm", "nvjet", "splitKreduce", "cutlass")
    return "matrix products" if any(name in kernel for name in products) else "elementwise"
