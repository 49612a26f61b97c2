"""The sizes of a measurement, and a batch of random sets of these sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Workload = Literal["layer", "gin", "median"]
Mode = Literal["inference", "training"]
Precision = Literal["float32", "tf32", "bf16"]


@dataclass(frozen=True)
class Case:
    """The sizes of one measurement."""

    sets: int
    elements: int
    """Of a set, on average."""

    in_channels: int = 300
    out_channels: int = 300
    hidden: tuple[int, ...] = (600, 300, 32)
    num_steps: int = 15
    varied: bool = True
    """Whether the sets differ in size: uniformly from half of `elements` to one and a half."""

    workload: Workload = "layer"
    """The layer alone, or the whole training step of a network around it."""

    def __str__(self) -> str:
        hidden = ", ".join(map(str, self.hidden))
        return (
            f"{self.workload}: {self.sets:,} sets of {'about ' * self.varied}{self.elements:,}, "
            f"{self.in_channels} -> {self.out_channels}, [{hidden}], T = {self.num_steps}"
        )


@dataclass(frozen=True, eq=False)
class Batch:
    """Sets side by side, in every form that a path may need. Their sizes are known on the host, so
    no path has to wait for the device."""

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
    """Random sets, the same on every device.

    Example:
        >>> batch = make_batch(Case(sets=4, elements=26), torch.device("cpu"))
        >>> batch.num_sets, all(13 <= size <= 39 for size in batch.sizes)
        (4, True)
    """
    generator = torch.Generator().manual_seed(seed)
    if case.varied:
        low, high = (case.elements + 1) // 2, case.elements + case.elements // 2
        counts = torch.randint(low, high + 1, (case.sets,), generator=generator)
    else:
        counts = torch.full((case.sets,), case.elements)
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
