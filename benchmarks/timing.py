"""Time and memory of a step of the layer and of its alternatives, on the same batches.

    python benchmarks/timing.py --preset quick --device cpu         # two minutes on two cores
    python benchmarks/timing.py --preset layer --device cuda --out benchmarks/records/NAME.jsonl

`--path`, `--precision` and `--mode` select a part of a preset. A path that fails has a row with the
reason.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from recording import arguments, header, milliseconds, write
from torch import Tensor, nn
from torch.nn import functional

from equipool import EquilibriumAggregation, ResNetPotential
from equipool.baselines import aggregation_from_name
from equipool.cuda import capture_step, clear_workspaces
from equipool.diagnostics.gradients import peak_bytes_of
from equipool.ops.execution import kernels
from equipool.reference import aggregate

BATCHES = 8  # of different sizes, in turn
LARGEST_REFERENCE = 32  # sets; the reference takes one at a time
UNROLLED = 7  # numbers that automatic differentiation keeps for each activation and step


@dataclass(frozen=True)
class Case:
    """The sizes of one measurement."""

    sets: int
    elements: int  # of a set, on average
    in_channels: int = 300
    out_channels: int = 300
    hidden: tuple[int, ...] = (600, 300, 32)
    num_steps: int = 15
    varied: bool = True  # set sizes: uniformly from half of `elements` to one and a half


@dataclass(frozen=True, eq=False)
class Batch:
    """Sets side by side."""

    x: Tensor  # [N, C]
    index: Tensor  # [N], sorted
    ptr: Tensor  # [B + 1]
    sizes: list[int]


@dataclass(frozen=True)
class Path:
    """A way to pool: the module, how it is called, and how the step runs."""

    make: Callable[[Case], nn.Module]
    call: Callable[[nn.Module, Tensor, Batch], Tensor]
    captured: bool = False  # the step runs as one CUDA graph, on one batch
    kernels: bool = True  # Triton kernels may be used
    unrolled: bool = False  # automatic differentiation of all steps, which takes much memory
    most_sets: int | None = None


def draw_batch(case: Case, device: torch.device, seed: int) -> Batch:
    """Random sets, the same on every device. Another seed gives other sizes."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.full((case.sets,), case.elements)
    if case.varied:
        low, high = (case.elements + 1) // 2, case.elements + case.elements // 2
        counts = torch.randint(low, high + 1, (case.sets,), generator=generator)
    x = torch.randn(int(counts.sum()), case.in_channels, generator=generator)
    index = torch.arange(case.sets).repeat_interleave(counts)
    ptr = functional.pad(counts.cumsum(0), (1, 0))
    return Batch(x.to(device), index.to(device), ptr.to(device), counts.tolist())


def make_layer(case: Case, factored: bool = True) -> EquilibriumAggregation:
    channels = case.in_channels, case.out_channels
    potential = ResNetPotential(*channels, case.hidden, factored=factored)
    return EquilibriumAggregation(*channels, potential=potential, steps=case.num_steps)


def make_pyg_layer(case: Case) -> nn.Module:
    """It computes another function, so times alone can be compared."""
    from torch_geometric.nn.aggr import EquilibriumAggregation as PyGLayer

    sizes = list(case.hidden)
    return PyGLayer(case.in_channels, case.out_channels, num_layers=sizes, grad_iter=case.num_steps)


def as_typed(module: nn.Module, x: Tensor, batch: Batch) -> Tensor:
    return module(x, batch.index)


def by_ptr(module: nn.Module, x: Tensor, batch: Batch) -> Tensor:
    """The call that does not wait for the device, which a captured step needs."""
    return module(x, ptr=batch.ptr)


def one_by_one(module: nn.Module, x: Tensor, batch: Batch) -> Tensor:
    """The reference."""
    return aggregate(x.split(batch.sizes), module)[0]


def rival(name: str) -> Path:
    def make(case: Case) -> nn.Module:
        return aggregation_from_name(
            name, case.in_channels, case.out_channels, set_size=case.elements
        )

    return Path(make, as_typed)


RIVALS = ("sum", "mean", "max", "attention", "set-transformer", "pna")
PATHS = {
    "equipool": Path(make_layer, as_typed),
    "equipool-captured": Path(make_layer, by_ptr, captured=True),
    "equipool-torch": Path(make_layer, as_typed, kernels=False),
    "equipool-autograd": Path(lambda case: make_layer(case, False), as_typed, unrolled=True),
    "reference": Path(make_layer, one_by_one, unrolled=True, most_sets=LARGEST_REFERENCE),
    "pyg": Path(make_pyg_layer, as_typed, unrolled=True),
    **{name: rival(name) for name in RIVALS},
}
PRECISIONS, MODES = ("float32", "tf32", "bf16"), ("training", "inference")
# The cases of each preset, its paths, and the precisions of our own paths and PyTorch Geometric's.
PRESETS: dict[str, tuple[list[Case], tuple[str, ...], tuple[str, ...]]] = {
    "quick": (
        [Case(sets, 26, num_steps=5) for sets in (8, 64)],
        ("equipool", "pyg", "reference", "equipool-autograd", *RIVALS), ("float32",),
    ),
    "plain": (
        [Case(sets, 26) for sets in (8, 256, 2048)],
        ("equipool", "equipool-captured", "pyg"), ("tf32", "bf16"),
    ),
    "layer": ([Case(sets, 26) for sets in (8, 256, 2048)], tuple(PATHS), PRECISIONS),
    "steps": (
        [Case(256, 26, num_steps=steps) for steps in (5, 10, 20, 50)],
        ("equipool", "equipool-captured", "pyg"), ("float32",),
    ),
    "elements": (
        [Case(1, 10**n, 32, 32, (64, 32, 16), 5, varied=False) for n in range(1, 7)],
        ("equipool", "pyg", "sum"), ("float32",),
    ),
}  # fmt: skip


@contextmanager
def computing_in(precision: str, device: torch.device) -> Iterator[None]:
    products = torch.backends.cuda.matmul
    before, products.allow_tf32 = products.allow_tf32, precision == "tf32"
    try:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
            yield
    finally:
        products.allow_tf32 = before


def make_step(
    case: Case, path: Path, precision: str, mode: str, device: torch.device
) -> Callable[[], object]:
    """A step that takes its batches in turn: forward, and in training backward to the elements and
    all parameters."""
    torch.manual_seed(0)
    module = path.make(case).to(device)
    count = BATCHES if case.varied and not path.captured else 1
    batches = [draw_batch(case, device, seed) for seed in range(count)]
    calls = iter(range(10**9))

    def step() -> None:
        batch = batches[next(calls) % count]
        with kernels(path.kernels), computing_in(precision, device):
            if mode == "inference":
                with torch.no_grad():
                    path.call(module, batch.x, batch)
                return
            for parameter in module.parameters():
                parameter.grad = None
            x = batch.x.detach().requires_grad_()
            loss = path.call(module, x, batch).float().square().mean()
        with kernels(path.kernels), computing_in("tf32" if precision == "tf32" else "", device):
            loss.backward()

    return capture_step(step) if path.captured else step


def reason_against(case: Case, path: Path, precision: str, device: torch.device) -> str:
    """Why a path cannot be timed here; nothing if it can."""
    if device.type != "cuda" and (precision == "tf32" or path.captured or not path.kernels):
        return "needs a CUDA device"
    if path.most_sets is not None and case.sets > path.most_sets:
        return f"is timed for at most {path.most_sets} sets"
    width = sum(case.hidden) + case.in_channels + case.out_channels
    needed = 4 * UNROLLED * case.sets * case.elements * width * case.num_steps
    if path.unrolled and device.type == "cpu" and needed > free_bytes():
        return f"needs about {needed / 2**30:,.0f} GiB"
    return ""


def free_bytes() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        lines = dict(line.split(":") for line in file)
    return int(lines["MemAvailable"].split()[0]) * 1024


def measure(
    case: Case, name: str, precision: str, mode: str, device: torch.device
) -> dict[str, Any]:
    """One row."""
    path = PATHS[name]
    row: dict[str, Any] = {"part": "rows", "case": asdict(case), "path": name,
                           "precision": precision, "mode": mode, "reason": "", "timing": None,
                           "peak_bytes": None, "agreement": None}  # fmt: skip
    row["reason"] = reason_against(case, path, precision, device)
    if not row["reason"]:
        try:
            made: list[Callable[[], object]] = []

            def first_step() -> None:  # inputs and parameters count as memory of the step
                made.append(make_step(case, path, precision, mode, device))
                made[0]()

            row["peak_bytes"] = peak_bytes_of(first_step, device)
            row["timing"] = milliseconds(made[0], device, least=BATCHES)
        except Exception as error:  # a rival may fail or run out of memory: the row says so
            row["reason"] = f"{type(error).__name__}: {error}"[:300]
    gc.collect()
    if device.type == "cuda":
        clear_workspaces()
        torch.cuda.empty_cache()
    return row


def planned(preset: str) -> Iterable[tuple[Case, str, str, str]]:
    """All measurements of a preset, case by case, so that what is compared runs at about the same
    time."""
    cases, paths, precisions = PRESETS[preset]
    for case in cases:
        for path in paths:
            for precision in ("float32",) if path in RIVALS and preset == "layer" else precisions:
                for mode in MODES:
                    yield case, path, precision, mode


def main() -> None:
    chosen = arguments(__doc__, preset="quick", path=tuple(PATHS), precision=PRECISIONS, mode=MODES)
    head, rows, shown = header(chosen.device) | {"preset": chosen.preset}, [], None
    for case, path, precision, mode in planned(chosen.preset):
        if path in chosen.path and precision in chosen.precision and mode in chosen.mode:
            rows.append(measure(case, path, precision, mode, chosen.device))
            write(chosen.out, head, rows)  # an interrupted run leaves a record, too
            if case != shown:
                print(f"\n{case}\nms (quartiles), MiB")
            shown, timing = case, rows[-1]["timing"]
            cells = rows[-1]["reason"] if timing is None else (
                f"{timing['median']:.3g} ({timing['lower_quartile']:.3g}-"
                f"{timing['upper_quartile']:.3g}), {rows[-1]['peak_bytes'] / 2**20:.3g}"
            )  # fmt: skip
            print(f"{path:20}{precision:10}{mode:11}{cells}", flush=True)


if __name__ == "__main__":
    main()
