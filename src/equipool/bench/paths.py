"""What is timed: a list of named ways to pool, each with the module and how it is run.

To time something else, add a `Path` to `PATHS` and its name to a preset.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from equipool.aggregation import EquilibriumAggregation
from equipool.baselines import AGGREGATIONS, aggregation_from_name
from equipool.bench.cases import Batch, Case, Precision
from equipool.capture import capture_step
from equipool.extras import check_extras
from equipool.potentials.resnet import ResNetPotential
from equipool.reference import aggregate, read_layer

PAIRWISE = ("set-transformer", "janossy")  # compare all elements of a set with each other
LARGEST_REFERENCE = 32  # sets; the reference takes one at a time

Call = Callable[[nn.Module, Tensor, Batch], Tensor]


class UnavailableError(Exception):
    """A path cannot run here; the message gives the reason."""


class Readout(nn.Module):
    """A pooling module and how it is called: elements `x [N, C]` of a batch -> `[B, K]`."""

    def __init__(self, module: nn.Module, call: Call) -> None:
        super().__init__()
        self.module = module
        self.call = call

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        return self.call(self.module, x, batch)


def as_typed(module: nn.Module, x: Tensor, batch: Batch) -> Tensor:
    """The plain call, of the layer, of its baselines and of PyTorch Geometric's layer."""
    return module(x, batch.index)


def by_ptr(module: nn.Module, x: Tensor, batch: Batch) -> Tensor:
    """The call that does not wait for the device, which a captured step needs."""
    return module(x, ptr=batch.ptr)


def one_by_one(module: nn.Module, x: Tensor, batch: Batch) -> Tensor:
    """The reference: one set at a time."""
    assert isinstance(module, EquilibriumAggregation)
    return aggregate(x.split(list(batch.sizes)), read_layer(module))[0]


@dataclass(frozen=True)
class Path:
    """One way to pool."""

    name: str
    description: str
    build: Callable[[Case], Readout]
    equilibrium: bool = False  # computes the paper's function, so must agree with the reference
    fixed_sizes: bool = False  # whether all steps take one batch, or others of other sizes
    captured: bool = False  # whether the whole step runs as one CUDA graph
    kernels: bool = True  # whether Triton kernels may be used; False requires a GPU
    # Roughly the memory it takes, checked on a CPU: the system would kill the whole run
    needed_bytes: Callable[[Case], int] = lambda case: 0
    max_sets: int | None = None

    def check(self, case: Case, precision: Precision, device: torch.device) -> None:
        """Raise an `UnavailableError` if the path cannot run."""
        if device.type != "cuda" and precision == "tf32":
            raise UnavailableError("tf32 needs a CUDA device")
        if device.type != "cuda" and self.captured:
            raise UnavailableError("needs a CUDA device")
        if device.type != "cuda" and not self.kernels:
            raise UnavailableError("is the same as equipool where there is no CUDA device")
        if self.max_sets is not None and case.sets > self.max_sets:
            raise UnavailableError(f"is timed for at most {self.max_sets} sets")
        if device.type == "cpu" and (needed := self.needed_bytes(case)) > available_bytes():
            raise UnavailableError(
                f"needs about {needed / 2**30:,.0f} GiB, of {available_bytes() / 2**30:,.0f} free"
            )

    def prepare(self, step: Callable[[], object]) -> Callable[[], object]:
        """The step as this path runs it."""
        return capture_step(step) if self.captured else step


def unrolled_bytes(case: Case) -> int:
    """Roughly what automatic differentiation of the unrolled solve keeps: about seven numbers per
    activation and step, measured with PyTorch Geometric's layer."""
    columns = sum(case.hidden) + case.in_channels + case.out_channels
    return 4 * 7 * case.sets * case.elements * columns * case.num_steps


def attention_bytes(case: Case) -> int:
    """Roughly what attention between all elements of a set keeps, with four heads."""
    return 4 * 4 * 3 * case.sets * case.elements**2


def available_bytes() -> int:
    """Free memory of the machine, as far as it is known."""
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":") for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return 2**63


def make_layer(case: Case, *, factored: bool = True, seed: int = 0) -> EquilibriumAggregation:
    """The layer of a case on the CPU; the same weights for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        channels = case.in_channels, case.out_channels
        # Zero biases, as in all records: errors of short products stay comparable.
        potential = ResNetPotential(*channels, case.hidden, factored=factored, bias_std=0.0)
    return EquilibriumAggregation(*channels, potential=potential, num_steps=case.num_steps)


def _layer(call: Call, *, factored: bool = True) -> Callable[[Case], Readout]:
    return lambda case: Readout(make_layer(case, factored=factored), call)


def _compiled(case: Case) -> Readout:
    """Compiled for the batch's own sizes."""
    layer = make_layer(case)
    compiled = torch.compile(layer, fullgraph=True, dynamic=False)
    return Readout(layer, lambda _, x, batch: compiled(x, ptr=batch.ptr))


def _pyg_layer(case: Case) -> Readout:
    """PyTorch Geometric's layer computes another function, so it is timed but not compared."""
    check_extras("timing its layer", {"pyg": ["torch_geometric"]})
    from torch_geometric.nn.aggr import EquilibriumAggregation as PyGLayer

    channels = case.in_channels, case.out_channels
    layer = PyGLayer(*channels, num_layers=list(case.hidden), grad_iter=case.num_steps)
    return Readout(layer, as_typed)


def _rival(name: str, call: Call = as_typed) -> Callable[[Case], Readout]:
    def build(case: Case) -> Readout:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = aggregation_from_name(
                name, case.in_channels, case.out_channels, set_size=case.elements
            )
        return Readout(module, call)

    return build


RIVALS = {
    name: Path(name, f"equipool.baselines: {description}", _rival(name),
               needed_bytes=attention_bytes if name in PAIRWISE else Path.needed_bytes)
    for name, description in AGGREGATIONS.items()
    if name != "equilibrium"
}  # fmt: skip

PATHS = {
    path.name: path
    for path in (
        Path("equipool", "the layer as typed: pool(x, index)", _layer(as_typed), equilibrium=True),
        Path("equipool-captured", "the layer, with the step in one CUDA graph (capture_step)",
             _layer(by_ptr), equilibrium=True, captured=True, fixed_sizes=True),
        Path("equipool-compiled", "the layer under torch.compile", _compiled, equilibrium=True,
             fixed_sizes=True),
        Path("equipool-torch", "the layer on a GPU without its Triton kernels", _layer(as_typed),
             equilibrium=True, kernels=False),
        Path("equipool-autograd", "the layer with ResNetPotential(factored=False)",
             _layer(as_typed, factored=False), equilibrium=True, needed_bytes=unrolled_bytes),
        Path("reference", "equipool.reference, one set at a time", _layer(one_by_one),
             equilibrium=True, needed_bytes=unrolled_bytes, max_sets=LARGEST_REFERENCE),
        Path("pyg", "PyTorch Geometric's EquilibriumAggregation, as typed", _pyg_layer,
             needed_bytes=unrolled_bytes),
        Path("sum-captured", "sum, with the step in one CUDA graph", _rival("sum", by_ptr),
             captured=True, fixed_sizes=True),
        *RIVALS.values(),
    )
}  # fmt: skip
