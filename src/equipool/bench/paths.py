"""What is timed: a readout, and how its step is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from equipool.bench.cases import Batch, Case
from equipool.bench.outcome import UnavailableError
from equipool.bench.readouts import CompiledLayer, Layer, OneByOne, Readout, make_layer
from equipool.bench.rivals import RIVALS, make_pyg_layer, make_rival
from equipool.bench.timing import Step
from equipool.capture import capture_step

SLOWEST_REFERENCE = 32  # sets, which the reference takes one at a time


@dataclass(frozen=True)
class Path:
    """One way to pool.

    Example:
        >>> PATHS["triton"].equilibrium, PATHS["sum"].equilibrium
        (True, False)
    """

    name: str
    description: str
    build: Callable[[Case, Batch], Readout]
    equilibrium: bool
    """Whether it computes the paper's function, and has to agree with the reference."""

    execution: Literal["eager", "captured"] = "eager"
    kernels: bool = False
    """Whether the Triton kernels are used."""

    def check(self, case: Case, device: torch.device) -> None:
        """Say why the path cannot run, if it cannot."""
        if device.type != "cuda" and (self.kernels or self.execution == "captured"):
            raise UnavailableError("needs a CUDA device")
        if self.name == "reference" and case.sets > SLOWEST_REFERENCE:
            raise UnavailableError(
                f"takes one set at a time, and is timed up to {SLOWEST_REFERENCE} sets only"
            )
        if device.type == "cpu":
            self._check_memory(case)

    def _check_memory(self, case: Case) -> None:
        """On the CPU a process that takes too much is ended, and its record with it."""
        needed = 0
        if self.name in ("pyg", "faithful", "reference"):
            needed = unrolled_bytes(case)
        elif self.name in ("gmt", "set-transformer"):
            needed = attention_bytes(case)
        if needed > (available := available_bytes()):
            raise UnavailableError(
                f"needs about {needed / 2**30:,.0f} GiB, of {available / 2**30:,.0f} GiB free"
            )

    def prepare(self, step: Step) -> Step:
        """The step as this path runs it."""
        return capture_step(step) if self.execution == "captured" else step


def unrolled_bytes(case: Case) -> int:
    """Roughly what automatic differentiation of the unrolled solve keeps: PyTorch Geometric's layer
    was seen to hold about seven numbers for each activation and step."""
    columns = sum(case.hidden) + case.in_channels + case.out_channels
    return 4 * 7 * case.sets * case.elements * columns * case.num_steps


def attention_bytes(case: Case) -> int:
    """Roughly what attention between all elements of a set keeps, with four heads."""
    return 4 * 4 * 3 * case.sets * case.elements**2


def available_bytes() -> int:
    """Memory that the CPU has free, as far as it says so."""
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":") for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return 2**63


def _ours(case: Case, batch: Batch) -> Readout:
    return Layer(make_layer(case))


def _paths() -> dict[str, Path]:
    paths = [
        Path(
            "pyg",
            "PyTorch Geometric's layer",
            lambda case, batch: make_pyg_layer(case),
            equilibrium=False,
        ),
        Path(
            "reference",
            "equipool.reference, one set at a time",
            lambda case, batch: OneByOne(make_layer(case)),
            equilibrium=True,
        ),
        Path(
            "faithful",
            "the layer by automatic differentiation, twice",
            lambda case, batch: Layer(make_layer(case, factored=False)),
            equilibrium=True,
        ),
        Path("torch", "the layer in torch operations", _ours, equilibrium=True),
        Path(
            "compiled",
            "the layer under torch.compile",
            lambda case, batch: CompiledLayer(make_layer(case)),
            equilibrium=True,
        ),
        Path("triton", "the layer with its kernels", _ours, equilibrium=True, kernels=True),
        Path(
            "captured",
            "the same, its whole step in a CUDA graph",
            _ours,
            equilibrium=True,
            execution="captured",
            kernels=True,
        ),
    ]
    for name, description in RIVALS.items():
        paths.append(_rival(name, description, "eager"))
    paths.append(_rival("sum", "sum, its whole step in a CUDA graph", "captured"))
    return {path.name: path for path in paths}


def _rival(name: str, description: str, execution: Literal["eager", "captured"]) -> Path:
    return Path(
        name if execution == "eager" else f"{name}-captured",
        description,
        lambda case, batch: make_rival(name, case, batch.sizes),
        equilibrium=False,
        execution=execution,
    )


PATHS = _paths()
