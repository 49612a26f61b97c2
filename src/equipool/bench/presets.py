"""Which cases, paths, precisions and modes a run measures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from equipool.bench.cases import Case, Mode, Precision
from equipool.bench.steps import PRECISIONS
from equipool.bench.timing import Budget

BOTH: tuple[Mode, ...] = ("inference", "training")
TRAINING: tuple[Mode, ...] = ("training",)
BUDGET = Budget()


class Series(NamedTuple):
    """A path and the precisions it is timed in."""

    path: str
    precisions: tuple[Precision, ...]


class Item(NamedTuple):
    """One measurement."""

    case: Case
    path: str
    precision: Precision
    mode: Mode


@dataclass(frozen=True)
class Preset:
    """A named benchmark."""

    name: str
    axis: str
    """The size that its cases differ in."""

    cases: tuple[Case, ...]
    series: tuple[Series, ...]
    modes: tuple[Mode, ...] = BOTH
    budget: Budget = BUDGET

    def items(self) -> list[Item]:
        """All measurements, case by case, so that what is compared runs at about the same time."""
        return [
            Item(case, path, precision, mode)
            for case in self.cases
            for path, precisions in self.series
            for precision in precisions
            for mode in self.modes
        ]

    def only(
        self,
        paths: Iterable[str] = (),
        precisions: Iterable[Precision] = (),
        modes: Iterable[Mode] = (),
    ) -> Preset:
        """The same with fewer paths, precisions or modes; an empty selection keeps all."""
        paths, precisions, modes = tuple(paths), tuple(precisions), tuple(modes)
        series = (
            Series(path, tuple(p for p in wanted if not precisions or p in precisions))
            for path, wanted in self.series
            if not paths or path in paths
        )
        kept = tuple(mode for mode in self.modes if not modes or mode in modes)
        return replace(self, series=tuple(s for s in series if s.precisions), modes=kept)

    def with_compiled(self) -> Preset:
        """The same plus the compiled layer, which takes minutes to compile."""
        series = Series("equipool-compiled", PRECISIONS)
        return replace(self, series=(*self.series, series))


def _series(paths: Iterable[str], precisions: tuple[Precision, ...]) -> tuple[Series, ...]:
    return tuple(Series(path, precisions) for path in paths)


FLOAT32: tuple[Precision, ...] = ("float32",)
OURS = ("equipool", "equipool-torch", "equipool-captured")
RIVALS = ("sum", "mean", "max", "attention", "set-transformer", "pna")

QUICK = Preset(
    "quick",
    "sets",
    tuple(Case(sets, 26, num_steps=5) for sets in (8, 64)),
    _series(("equipool", "pyg", "reference", "equipool-autograd", *RIVALS), FLOAT32),
    budget=Budget(seconds=1.0, repeats=5, warmup=1),
)

LAYER = Preset(
    "layer",
    "sets",
    tuple(Case(sets, 26) for sets in (8, 256, 2048)),
    (
        *_series((*OURS, "pyg", "equipool-autograd"), PRECISIONS),
        *_series(("reference", *RIVALS), FLOAT32),
    ),
)

STEPS = Preset(
    "steps",
    "num_steps",
    tuple(Case(256, 26, num_steps=num_steps) for num_steps in (5, 10, 20, 50)),
    _series((*OURS, "pyg", "equipool-autograd"), FLOAT32),
)

ELEMENTS = Preset(
    "elements",
    "elements",
    tuple(
        Case(1, 10**power, 32, 32, hidden=(64, 32, 16), num_steps=5, varied=False)
        for power in range(1, 7)
    ),
    _series((*OURS, "pyg", "equipool-autograd", *RIVALS), FLOAT32),
)

WIDTH = Preset(
    "width",
    "in_channels",
    tuple(
        Case(256, 26, width, width, hidden=(2 * width, width, 32), num_steps=10)
        for width in (32, 64, 128, 256, 512, 1024)
    ),
    (
        *_series(OURS, ("float32", "tf32")),
        *_series(("pyg", "equipool-autograd"), FLOAT32),
        *_series(("sum", "set-transformer"), FLOAT32),
    ),
)

NETWORK_PATHS = (*OURS, "sum", "sum-captured", "pyg")

GIN = Preset(
    "gin",
    "sets",
    (Case(256, 26, num_steps=10, workload="gin"),),
    _series(NETWORK_PATHS, PRECISIONS),
    modes=TRAINING,
)

MEDIAN = Preset(
    "median",
    "sets",
    (Case(256, 100, 1, 16, hidden=(256, 256, 1), num_steps=5, varied=False, workload="median"),),
    _series(NETWORK_PATHS, PRECISIONS),
    modes=TRAINING,
)

PRESETS = {preset.name: preset for preset in (QUICK, LAYER, STEPS, ELEMENTS, WIDTH, GIN, MEDIAN)}
