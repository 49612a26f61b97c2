"""Memory and time of a training step over a set on disk, beside the step with all elements at hand.

    python benchmarks/chunks.py --out benchmarks/records/NAME.jsonl

Writes 2.4 GiB to a temporary folder, and removes them. The CPU time of the process, which other
processes on the machine change little, is recorded beside the time that passed. Linux only.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from recording import arguments, header, write
from torch import Tensor

from equipool import EquilibriumAggregation, ResNetPotential
from equipool.large import chunked, solve_chunks

CHANNELS, OUT_CHANNELS, HIDDEN, STEPS = 64, 16, (32, 16, 8), 3
CHUNK_SIZE = 65536


def make_layer(steps: int = STEPS, **options: Any) -> EquilibriumAggregation:
    torch.manual_seed(0)
    potential = ResNetPotential(CHANNELS, OUT_CHANNELS, HIDDEN)
    return EquilibriumAggregation(
        CHANNELS, OUT_CHANNELS, potential=potential, steps=steps, scaling="mean", **options
    )


def write_elements(path: Path, elements: int) -> None:
    """Normally distributed elements, without ever holding all of them."""
    generator = np.random.default_rng(0)
    file = np.lib.format.open_memmap(path, "w+", np.float32, (elements, CHANNELS))
    for start in range(0, elements, CHUNK_SIZE):
        rows = file[start : start + CHUNK_SIZE]
        rows[:] = generator.standard_normal(rows.shape, np.float32)
    file.flush()


class Mapped:
    """A file that is mapped to memory while rows of it are copied, and no longer: pages of a map
    that stays count as memory of the process, up to the whole file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return len(np.load(self.path, mmap_mode="r"))

    def __getitem__(self, rows: slice) -> Any:
        return np.array(np.load(self.path, mmap_mode="r")[rows])


def step(layer: EquilibriumAggregation, pool: Callable[[], Tensor]) -> tuple[float, float]:
    """Seconds that passed, and seconds of the processor."""
    layer.zero_grad()
    start, own = perf_counter(), process_time()
    pool().square().sum().backward()
    return perf_counter() - start, process_time() - own


def measure_disk(path: Path, elements: int) -> dict[str, Any]:
    """Forward and backward pass over a file, with the peak memory."""
    write_elements(path, elements)
    layer, chunks = make_layer(), chunked(Mapped(path), size=CHUNK_SIZE)
    seconds, cpu = step(layer, lambda: solve_chunks(layer, chunks, diagnostics=False).y)
    return {
        "elements": elements, "file_bytes": path.stat().st_size, "seconds": seconds,
        "cpu_seconds": cpu,
        "peak_resident_bytes": 1024 * getrusage(RUSAGE_SELF).ru_maxrss,
    }  # fmt: skip


def compare(path: Path, elements: int, repeats: int) -> dict[str, Any]:
    """The speed over chunks against that with all elements at hand, in turns."""
    write_elements(path, elements)
    layer, x = make_layer(), torch.from_numpy(np.load(path))

    def over(data: Any) -> Callable[[], Tensor]:
        chunks = chunked(data, size=CHUNK_SIZE)
        return lambda: solve_chunks(layer, chunks, diagnostics=False).y

    ways: dict[str, Callable[[], Tensor]] = {
        "all at hand": lambda: layer(x),
        "chunks in host memory": over(x),
        "chunks on disk": over(Mapped(path)),
    }
    turns = [{name: step(layer, pool) for name, pool in ways.items()} for _ in range(repeats + 1)]
    found: dict[str, Any] = {"elements": elements}
    for at, unit in enumerate(("seconds", "cpu_seconds")):
        times = {name: [turn[name][at] for turn in turns[1:]] for name in ways}
        ratios = {
            name: [a / b for a, b in zip(times["all at hand"], own, strict=True)]
            for name, own in times.items()
            if name != "all at hand"
        }
        found[unit] = times
        found[f"speed_by_{unit}"] = {
            name: {"median": median(some), "lowest": min(some), "highest": max(some)}
            for name, some in ratios.items()
        }
    return found


def main() -> None:
    chosen = arguments(__doc__, elements=10**7, compared=500_000, repeats=5)
    head = header(torch.device("cpu")) | {"chunk_size": CHUNK_SIZE}
    with tempfile.TemporaryDirectory() as folder:
        head["disk"] = measure_disk(Path(folder) / "x.npy", chosen.elements)
        print(head["disk"], flush=True)
        head["comparison"] = compare(Path(folder) / "y.npy", chosen.compared, chosen.repeats)
        print(head["comparison"])
    write(chosen.out, head)


if __name__ == "__main__":
    main()
