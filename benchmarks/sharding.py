"""One large set over several processes, against one process: time of a training step.

    python benchmarks/sharding.py --out benchmarks/records/cpu-sharding.json
    python benchmarks/sharding.py --device cuda --processes 8 --out RECORD

The two take turns on the same machine, with one thread per process. The CPU time of the busiest
process, which others on the machine change little, is recorded beside the time that passed. With
`--device cuda` every process has a GPU.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import perf_counter, process_time
from typing import Annotated, Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import typer
from equipool.bench.command import Commit, Device, Out, check_out
from equipool.bench.record import FORMAT, git_commit
from torch import Tensor

from equipool import EquilibriumAggregation, Nesterov, ResNetPotential
from equipool.distributed import average_gradients, sharded
from equipool.environment import hardware, now, versions

CHANNELS, OUT_CHANNELS, HIDDEN, NUM_STEPS = 64, 16, (32, 16, 8), 5
GOAL = 0.65  # of the time of one process, by two
SEED = 0

app = typer.Typer(add_completion=False)


@app.command()
def main(
    elements: Annotated[int, typer.Option(help="elements of the set")] = 10**6,
    processes: Annotated[int, typer.Option(help="processes that share it")] = 2,
    repeats: Annotated[int, typer.Option(help="turns")] = 7,
    device: Device = "cpu",
    out: Out = None,
    commit: Commit = None,
) -> None:
    """Measure a training step of one set over several processes."""
    check_out(out)
    command = (
        f"python benchmarks/sharding.py --elements {elements} --processes {processes} "
        f"--repeats {repeats} --device {device}"
    )
    torch.set_num_threads(1)
    content: dict[str, Any] = {
        "command": command, "date": now(), "commit": commit or git_commit(),
        "versions": versions(), "hardware": hardware(torch.device(device)), "format": FORMAT,
        "seed": SEED, "elements": elements, "processes": processes,
        "layer": {"in_channels": CHANNELS, "out_channels": OUT_CHANNELS, "hidden": HIDDEN,
                  "num_steps": NUM_STEPS, "differentiation": "Unrolled()", "dtype": "float32"},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        load = os.getloadavg()[0]
        mp.spawn(work, (processes, elements, repeats, device, folder), nprocs=processes)
        turns = json.loads((Path(folder) / "turns.json").read_text())
    content |= {"load_before_and_after": [load, os.getloadavg()[0]], **summary(turns)}
    print(json.dumps(content, indent=1))
    if out is not None:
        out.write_text(json.dumps(content, indent=1) + "\n")


def work(rank: int, processes: int, elements: int, repeats: int, device: str, folder: str) -> None:
    torch.set_num_threads(1)
    place = torch.device(device, rank) if device == "cuda" else torch.device(device)
    if device == "cuda":
        torch.cuda.set_device(place)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo", init_method=f"file://{folder}/rendezvous",
        rank=rank, world_size=processes,
    )  # fmt: skip
    torch.manual_seed(SEED)
    layer = EquilibriumAggregation(
        CHANNELS, OUT_CHANNELS, potential=ResNetPotential(CHANNELS, OUT_CHANNELS, HIDDEN),
        solver=Nesterov(), num_steps=NUM_STEPS, scaling="mean", cuda_graphs=False,
    ).to(place)  # fmt: skip
    whole = torch.randn(elements, CHANNELS, generator=torch.Generator().manual_seed(SEED))
    part = whole.tensor_split(processes)[rank].to(place)
    whole = whole.to(place) if rank == 0 else whole[:0]
    turns = []
    for _ in range(1 + repeats):
        alone = step(layer, whole, nullcontext()) if rank == 0 else (0.0, 0.0)
        dist.barrier()
        together = step(layer, part, sharded())
        times = torch.tensor([*alone, *together], dtype=torch.float64, device=place)
        dist.all_reduce(times, dist.ReduceOp.MAX)
        turns.append(times.tolist())
    if rank == 0:
        Path(folder, "turns.json").write_text(json.dumps(turns[1:]))
    dist.destroy_process_group()


def step(
    layer: EquilibriumAggregation, x: Tensor, block: AbstractContextManager[None]
) -> tuple[float, float]:
    """Seconds that passed, and CPU seconds of this process."""
    layer.zero_grad()
    start, own = perf_counter(), process_time()
    with block:
        layer(x).square().sum().backward()
        if not isinstance(block, nullcontext):
            average_gradients(layer)
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    return perf_counter() - start, process_time() - own


def summary(turns: list[list[float]]) -> dict[str, Any]:
    columns = dict(
        zip(("one", "one_cpu", "several", "several_cpu"), zip(*turns, strict=True), strict=True)
    )
    ratios = [b / a for a, b in zip(columns["one"], columns["several"], strict=True)]
    cpu = [b / a for a, b in zip(columns["one_cpu"], columns["several_cpu"], strict=True)]
    return {
        "seconds_of_one_process": columns["one"],
        "seconds_of_several": columns["several"],
        "cpu_seconds_of_one_process": columns["one_cpu"],
        "cpu_seconds_of_busiest_of_several": columns["several_cpu"],
        "ratio": spread(ratios) | {"of_fastest": min(columns["several"]) / min(columns["one"])},
        "cpu_ratio": spread(cpu),
        "goal": GOAL,
    }


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


if __name__ == "__main__":
    app()
