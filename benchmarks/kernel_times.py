"""Where a training step of the layer spends its time on a GPU.

python benchmarks/kernel_times.py --out benchmarks/profiles/NAME.json
"""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import product
from typing import Annotated, Any, cast

import torch
import typer
from torch.profiler import ProfilerActivity, profile

from equipool.bench.cases import PRECISIONS, Case, Precision, make_batch
from equipool.bench.command import (
    Commit,
    Out,
    Precisions,
    check_names,
    check_out,
    choose_device,
)
from equipool.bench.paths import PATHS
from equipool.bench.record import git_commit
from equipool.bench.steps import make_step
from equipool.environment import hardware, now, versions

KERNELS = ("activate", "hidden_adjoints", "hidden_adjoint", "last_layer", "reduce_tiles")
PRODUCTS = ("gemm", "nvjet", "splitKreduce", "cutlass")
SETS = (8, 256, 2048)

app = typer.Typer(add_completion=False)


@app.command()
def main(
    sets: Annotated[
        list[int] | None, typer.Option(help="number of sets; can be repeated", metavar="INT")
    ] = None,
    precision: Precisions = None,
    out: Out = None,
    commit: Commit = None,
) -> None:
    """Show where a training step of the layer spends its time on a GPU."""
    device = choose_device("cuda")
    check_names("precision", precision, PRECISIONS)
    check_out(out)
    rows = []
    for number, kind in product(sets or SETS, cast(Any, precision) or PRECISIONS):
        spent = profile_layer(Case(number, 26), kind, device)
        rows.append({"sets": number, "precision": kind, "microseconds": spent})
        print(rows[-1])
    if out is not None:
        about = {"date": now(), "commit": commit or git_commit(), "versions": versions()}
        out.write_text(json.dumps({**about, "hardware": hardware(device), "rows": rows}, indent=1))


def profile_layer(case: Case, precision: Precision, device: torch.device) -> dict[str, float]:
    """Microseconds by kind of kernel in one training step."""
    step = make_step(case, make_batch(case, device), PATHS["equipool"], "training", precision)
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    totals: dict[str, float] = defaultdict(float)
    for event in profiler.key_averages():
        totals[kernel_kind(event.key)] += event.self_device_time_total
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


def kernel_kind(kernel: str) -> str:
    """Our kernels by name, matrix products together, all else as elementwise."""
    if kernel in KERNELS:
        return kernel
    return "matrix products" if any(name in kernel for name in PRODUCTS) else "elementwise"


if __name__ == "__main__":
    app()
