"""One large set over several processes, against one process: time of a training step.

    python benchmarks/sharding.py --processes 2 --out benchmarks/records/NAME.jsonl

The two take turns on the same machine, with one thread per process; with `--device cuda` every
process has a GPU. The CPU time of the busiest process is recorded beside the time that passed.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from chunks import CHANNELS, make_layer
from recording import arguments, header, write
from torch import Tensor

from equipool import EquilibriumAggregation
from equipool.distributed import average_gradients, sharded

STEPS = 5


def work(rank: int, processes: int, elements: int, repeats: int, device: str, folder: str) -> None:
    """A process: the first one takes turns between the whole set alone and its share."""
    torch.set_num_threads(1)
    place = torch.device(device, rank) if device == "cuda" else torch.device(device)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo", init_method=f"file://{folder}/rendezvous",
        rank=rank, world_size=processes,
    )  # fmt: skip
    layer = make_layer(STEPS, cuda_graphs=False).to(place)
    whole = torch.randn(elements, CHANNELS, generator=torch.Generator().manual_seed(0))
    part = whole.tensor_split(processes)[rank].to(place)
    whole = whole.to(place) if rank == 0 else whole[:0]
    turns = []
    for _ in range(1 + repeats):
        alone = step(layer, whole, nullcontext()) if rank == 0 else (0.0, 0.0)
        dist.barrier()
        together = step(layer, part, sharded(), share=True)
        times = torch.tensor([*alone, *together], dtype=torch.float64, device=place)
        dist.all_reduce(times, dist.ReduceOp.MAX)
        turns.append(times.tolist())
    if rank == 0:
        Path(folder, "turns.json").write_text(json.dumps(turns[1:]), encoding="utf-8")
    dist.destroy_process_group()


def step(
    layer: EquilibriumAggregation, x: Tensor, block: AbstractContextManager[None],
    share: bool = False,
) -> tuple[float, float]:  # fmt: skip
    """Seconds that passed, and CPU seconds of this process."""
    layer.zero_grad()
    start, own = perf_counter(), process_time()
    with block:
        layer(x).square().sum().backward()
        if share:
            average_gradients(layer)
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    return perf_counter() - start, process_time() - own


def summary(turns: list[list[float]]) -> dict[str, Any]:
    """The times, and the share of one process's time that several take."""
    names = ("seconds_of_one", "cpu_seconds_of_one", "seconds_of_several", "cpu_of_busiest")
    found: dict[str, Any] = dict(zip(names, zip(*turns, strict=True), strict=True))
    for name, at in (("ratio", 0), ("cpu_ratio", 1)):
        ratios = [turn[at + 2] / turn[at] for turn in turns]
        found[name] = {"median": median(ratios), "lowest": min(ratios), "highest": max(ratios)}
    return found


def main() -> None:
    chosen = arguments(__doc__, elements=10**6, processes=2, repeats=7)
    torch.set_num_threads(1)
    sizes = (chosen.processes, chosen.elements, chosen.repeats)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (*sizes, chosen.device.type, folder), nprocs=chosen.processes)
        turns = json.loads((Path(folder) / "turns.json").read_text(encoding="utf-8"))
    head = header(chosen.device) | dict(zip(("processes", "elements"), sizes, strict=False))
    head |= summary(turns)
    print(head["ratio"], head["cpu_ratio"])
    write(chosen.out, head)


if __name__ == "__main__":
    main()
