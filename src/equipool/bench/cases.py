"""What is measured: the sizes of a case, random batches of these sizes, and the presets."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

Workload = Literal["layer", "gin", "median"]
Mode = Literal["training", "inference"]
Precision = Literal["float32", "tf32", "bf16"]

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
BOTH: tuple[Mode, ...] = get_args(Mode)
TRAINING: tuple[Mode, ...] = ("training",)


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
    workload: Workload = "layer"  # the layer alone, or the training step of a network around it

    def __str__(self) -> str:
        hidden = ", ".join(map(str, self.hidden))
        return (
            f"{self.workload}: {self.sets:,} sets of {'about ' * self.varied}{self.elements:,}, "
            f"{self.in_channels} -> {self.out_channels}, [{hidden}], T = {self.num_steps}"
        )


@dataclass(frozen=True, eq=False)
class Batch:
    """Sets side by side, in every form that a path may need."""

    x: Tensor  # [N, C]
    index: Tensor  # [N], sorted
    ptr: Tensor  # [B + 1]
    upstream: Tensor  # [B, K] derivative of the loss by the output
    sizes: tuple[int, ...]

    @property
    def num_sets(self) -> int:
        return len(self.sizes)

    @property
    def num_elements(self) -> int:
        return sum(self.sizes)


def make_batch(case: Case, device: torch.device, seed: int = 0) -> Batch:
    """Random sets, the same on every device. Another seed gives other sizes."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.full((case.sets,), case.elements)
    if case.varied:
        low, high = (case.elements + 1) // 2, case.elements + case.elements // 2
        counts = torch.randint(low, high + 1, (case.sets,), generator=generator)
    sizes = tuple(counts.tolist())
    x = torch.randn(sum(sizes), case.in_channels, generator=generator)
    upstream = torch.randn(case.sets, case.out_channels, generator=generator)
    return _assemble(x.to(device), sizes, upstream.to(device))


def first_sets(batch: Batch, max_sets: int, max_elements: int) -> Batch:
    """The first sets of a batch, as a batch of their own. A first set with too many elements is
    cut."""
    sizes: list[int] = []
    for size in batch.sizes[:max_sets]:
        if sizes and sum(sizes) + size > max_elements:
            break
        sizes.append(min(size, max_elements))
    return _assemble(batch.x[: sum(sizes)], tuple(sizes), batch.upstream[: len(sizes)])


def _assemble(x: Tensor, sizes: tuple[int, ...], upstream: Tensor) -> Batch:
    counts = torch.tensor(sizes, dtype=torch.long)
    index = torch.arange(len(sizes)).repeat_interleave(counts)
    ptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    return Batch(x, index.to(x.device), ptr.to(x.device), upstream, sizes)


Names = Collection[str] | None


class Series(NamedTuple):
    """A path, with the precisions and modes it is timed in."""

    path: str
    precisions: tuple[Precision, ...] = ("float32",)
    modes: tuple[Mode, ...] = BOTH


class Item(NamedTuple):
    """One measurement."""

    case: Case
    path: str
    precision: Precision
    mode: Mode


@dataclass(frozen=True)
class Budget:
    """How long to measure: so many seconds, but at least a few repeats."""

    seconds: float = 1.0
    repeats: int = 7
    warmup: int = 2


@dataclass(frozen=True)
class Preset:
    """A named benchmark."""

    name: str
    axis: str  # the size that its cases differ in
    cases: tuple[Case, ...]
    series: tuple[Series, ...]
    budget: Budget = Budget()

    def items(self) -> list[Item]:
        """All measurements, case by case, so that what is compared runs at about the same time."""
        return [
            Item(case, path, precision, mode)
            for case in self.cases
            for path, precisions, modes in self.series
            for precision in precisions
            for mode in modes
        ]

    def with_compiled(self) -> Preset:
        """The same plus the compiled layer, which takes minutes to compile."""
        return replace(self, series=(*self.series, Series("equipool-compiled", PRECISIONS)))


def select(items: Iterable[Item], paths: Names, precisions: Names, modes: Names) -> list[Item]:
    """Those with one of these paths, precisions and modes; None or nothing selects all."""
    return [
        item
        for item in items
        if item.path in (paths or [item.path])
        and item.precision in (precisions or [item.precision])
        and item.mode in (modes or [item.mode])
    ]


def _series(paths: Iterable[str], *precisions_and_modes: Any) -> tuple[Series, ...]:
    return tuple(Series(path, *precisions_and_modes) for path in paths)


# The plain call comes first: it is what everybody types.
OURS = ("equipool", "equipool-captured", "equipool-torch")
LAYERS = (*OURS, "pyg", "equipool-autograd")
RIVALS = ("sum", "mean", "max", "attention", "set-transformer", "pna")
IN_NETWORKS = _series((*OURS, "sum", "sum-captured", "pyg"), PRECISIONS, TRAINING)
TENSOR_CORES: tuple[Precision, ...] = ("tf32", "bf16")

QUICK = tuple(Case(sets, 26, num_steps=5) for sets in (8, 64))
PAPER = tuple(Case(sets, 26) for sets in (8, 256, 2048))
STEPS = tuple(Case(256, 26, num_steps=num_steps) for num_steps in (5, 10, 20, 50))
ELEMENTS = tuple(Case(1, 10**n, 32, 32, (64, 32, 16), 5, varied=False) for n in range(1, 7))
WIDTHS = tuple(Case(256, 26, w, w, (2 * w, w, 32), 10) for w in (32, 64, 128, 256, 512, 1024))
GIN = Case(256, 26, num_steps=10, workload="gin")
MEDIAN = Case(256, 100, 1, 16, (256, 256, 1), 5, varied=False, workload="median")

PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            "quick", "sets", QUICK,
            _series(("equipool", "pyg", "reference", "equipool-autograd", *RIVALS)),
            Budget(seconds=1.0, repeats=5, warmup=1),
        ),
        Preset(
            "plain", "sets", PAPER,
            (Series("equipool", TENSOR_CORES),
             *_series(("equipool-captured", "pyg"), TENSOR_CORES, TRAINING)),
        ),
        Preset(
            "layer", "sets", PAPER,
            (*_series(LAYERS, PRECISIONS), *_series(("reference", *RIVALS))),
        ),
        Preset("steps", "num_steps", STEPS, _series(LAYERS)),
        Preset("elements", "elements", ELEMENTS, _series((*LAYERS, *RIVALS))),
        Preset(
            "width", "in_channels", WIDTHS,
            (*_series(OURS, ("float32", "tf32")),
             *_series(("pyg", "equipool-autograd", "sum", "set-transformer"))),
        ),
        Preset("networks", "workload", (GIN, MEDIAN), IN_NETWORKS),
    )
}  # fmt: skip
