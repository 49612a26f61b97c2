"""Peak memory and time of a training step over a set on disk, and its speed against the same step
with all elements at hand.

    python benchmarks/chunks.py --out benchmarks/records/cpu-chunks.json
    python benchmarks/chunks.py --device cuda --out benchmarks/records/h200-chunks.json

Writes 2.4 GiB to a temporary folder, and removes them. With `--device cuda` the data of the
comparison are in host memory, against data on the device. The CPU time of the process, which other
processes on the machine change little, is recorded beside the time that passed.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, process_time
from typing import Annotated, Any

import numpy
import torch
import typer
from torch import Tensor

from equipool import EquilibriumAggregation, Nesterov, ResNetPotential
from equipool.bench.command import Commit, Device, Out, check_out
from equipool.bench.record import FORMAT, git_commit
from equipool.environment import hardware, now, versions
from equipool.large import chunked, solve_chunks

CHANNELS, OUT_CHANNELS, HIDDEN, NUM_STEPS = 64, 16, (32, 16, 8), 3
CHUNK_SIZE = 65536
GIBIBYTE = 1 << 30
SEED = 0

app = typer.Typer(add_completion=False)


@app.command()
def main(
    elements: Annotated[int, typer.Option(help="elements of the set on disk; 0 for none")] = 10**7,
    compared: Annotated[int, typer.Option(help="elements of the set that fits")] = 500_000,
    repeats: Annotated[int, typer.Option(help="repeats of the comparison")] = 5,
    device: Device = "cpu",
    out: Out = None,
    commit: Commit = None,
) -> None:
    """Measure a training step over chunks."""
    check_out(out)
    place = torch.device(device)
    content: dict[str, Any] = {
        "command": f"python benchmarks/chunks.py --elements {elements} --compared {compared} "
        f"--repeats {repeats} --device {device}",
        "date": now(), "commit": commit or git_commit(), "versions": versions(),
        "hardware": hardware(place), "format": FORMAT, "seed": SEED,
        "layer": {"in_channels": CHANNELS, "out_channels": OUT_CHANNELS, "hidden": HIDDEN,
                  "num_steps": NUM_STEPS, "differentiation": "Unrolled()", "dtype": "float32"},
        "chunk_size": CHUNK_SIZE,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        if elements:
            content["disk"] = measure_disk(Path(folder) / "x.npy", elements, place)
            print(content["disk"], flush=True)
        if compared:
            content["comparison"] = compare(Path(folder) / "y.npy", compared, repeats, place)
            print(content["comparison"], flush=True)
    if out is not None:
        out.write_text(json.dumps(content, indent=1) + "\n")


def make_layer(device: torch.device) -> EquilibriumAggregation:
    torch.manual_seed(SEED)
    return EquilibriumAggregation(
        CHANNELS, OUT_CHANNELS, potential=ResNetPotential(CHANNELS, OUT_CHANNELS, HIDDEN),
        solver=Nesterov(), num_steps=NUM_STEPS, scaling="mean",
    ).to(device)  # fmt: skip


def write(path: Path, elements: int) -> None:
    """Normally distributed elements, without ever holding all of them."""
    generator = numpy.random.default_rng(SEED)
    file = numpy.lib.format.open_memmap(path, "w+", numpy.float32, (elements, CHANNELS))
    for start in range(0, elements, CHUNK_SIZE):
        rows = file[start : start + CHUNK_SIZE]
        rows[:] = generator.standard_normal(rows.shape, numpy.float32)
    file.flush()
    del file  # its pages would count as memory


class Mapped:
    """A file that is mapped to memory while rows of it are copied, and no longer: pages of a map
    that stays count as memory of the process, up to the whole file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return len(numpy.load(self.path, mmap_mode="r"))

    def __getitem__(self, rows: slice) -> Any:
        return numpy.array(numpy.load(self.path, mmap_mode="r")[rows])


def measure_disk(path: Path, elements: int, device: torch.device) -> dict[str, Any]:
    """Forward and backward pass over a file, with the peak memory."""
    write(path, elements)
    layer, chunks = make_layer(device), chunked(Mapped(path), size=CHUNK_SIZE)
    before = memory("RssAnon")
    with peak("RssAnon") as anonymous, peak("VmRSS") as resident:
        start, own = perf_counter(), process_time()
        y = solve_chunks(layer, chunks, diagnostics=False).y
        forward = synchronized(device) - start
        y.square().sum().backward()
        both, cpu = synchronized(device) - start, process_time() - own
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())
    return {
        "elements": elements,
        "file_bytes": path.stat().st_size,
        "forward_seconds": forward,
        "backward_seconds": both - forward,
        "cpu_seconds": cpu,
        "anonymous_bytes_before": before,
        "peak_anonymous_bytes": anonymous[0],
        "peak_resident_bytes": resident[0],
        "memory_measured_as": "RssAnon of /proc/self/status, sampled every 5 ms: memory without "
        "pages of files. The resident size has those too: of libraries, and of a chunk at a time.",
        "within_2_gib": resident[0] <= 2 * GIBIBYTE,
    }


def compare(path: Path, elements: int, repeats: int, device: torch.device) -> dict[str, Any]:
    """Seconds of a training step with all elements at hand and over chunks, in turns."""
    write(path, elements)
    layer = make_layer(device)
    host = torch.from_numpy(numpy.load(path))
    at_hand = host.to(device)

    def step(pool: Callable[[], Tensor]) -> tuple[float, float]:
        layer.zero_grad()
        start, own = perf_counter(), process_time()
        pool().square().sum().backward()
        return synchronized(device) - start, process_time() - own

    def over(chunks: Iterable[Any]) -> Callable[[], Tensor]:
        return lambda: solve_chunks(layer, chunks, diagnostics=False).y

    paths = {
        "all at hand": lambda: layer(at_hand),
        "chunks at hand": over(chunked(at_hand, size=CHUNK_SIZE)),
        "chunks in host memory": over(chunked(host, size=CHUNK_SIZE)),
        "chunks on disk": over(chunked(Mapped(path), size=CHUNK_SIZE)),
    }
    for pool in paths.values():
        step(pool)
    turns = [{name: step(pool) for name, pool in paths.items()} for _ in range(repeats)]
    found: dict[str, Any] = {"elements": elements}
    for position, unit in enumerate(("seconds", "cpu_seconds")):
        times = {name: [turn[name][position] for turn in turns] for name in paths}
        found[unit] = times
        found[f"speed_by_{unit}"] = {
            name: speeds(times["all at hand"], own)
            for name, own in times.items()
            if name != "all at hand"
        }
    return found


def speeds(reference: list[float], own: list[float]) -> dict[str, float]:
    """The speed against a reference, turn by turn."""
    ratios = [a / b for a, b in zip(reference, own, strict=True)]
    return {"median": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios),
            "of_fastest": min(reference) / min(own)}  # fmt: skip


def synchronized(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()


def memory(name: str) -> int:
    """Bytes of this process, from a line of Linux's status file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {name}: run this on Linux")


@contextmanager
def peak(name: str) -> Iterator[list[int]]:
    """The largest memory of this process, sampled during the block, in a list."""
    found, stopped = [memory(name)], threading.Event()

    def sample() -> None:
        while not stopped.wait(0.005):
            found[0] = max(found[0], memory(name))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield found
    finally:
        stopped.set()
        thread.join()


if __name__ == "__main__":
    app()
