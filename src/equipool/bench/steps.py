"""The steps that are timed: of the layer alone, and of small networks around it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from equipool.bench.cases import Batch, Case, Mode, Precision
from equipool.bench.paths import Path, Readout
from equipool.experiments.median.data import held_out_sets
from equipool.experiments.median.network import MedianNetwork
from equipool.experiments.residual import ResidualNetwork
from equipool.ops.execution import kernels

ATOM_TYPES = 100
TASKS = 128
BONDS_PER_ATOM = 28 / 26
GIN_LAYERS = 5


@contextmanager
def products_in(precision: Precision) -> Iterator[None]:
    """Let tensor cores round the operands of float32 products only in `tf32`."""
    products = torch.backends.cuda.matmul
    before, products.allow_tf32 = products.allow_tf32, precision == "tf32"
    try:
        yield
    finally:
        products.allow_tf32 = before


def forward_in(precision: Precision, device: torch.device) -> torch.autocast:
    """`torch.autocast` in `bf16`, for the forward pass only: the backward pass follows it."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


class BatchStep(ABC):
    """A step that takes its batches in turn, a different one at each call."""

    def __init__(self, batch: Batch, precision: Precision, use_kernels: bool) -> None:
        self.precision = precision
        self.use_kernels = use_kernels
        self.batches: list[tuple[Batch, tuple[Tensor, ...]]] = []
        self.calls = 0
        self.add(batch)

    def add(self, batch: Batch) -> None:
        """Add a batch to those that the step takes in turn."""
        self.batches.append((batch, self.inputs(batch)))

    def __call__(self) -> None:
        batch, inputs = self.batches[self.calls % len(self.batches)]
        self.calls += 1
        self.run(batch, *inputs)

    @abstractmethod
    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """What `run` takes besides the batch."""

    @abstractmethod
    def run(self, batch: Batch, *inputs: Tensor) -> None:
        """The step on a batch."""


class LayerStep(BatchStep):
    """A forward pass of a readout, and in training its backward pass to the elements and all
    parameters, without an optimiser. Keeps the latest output and gradients."""

    def __init__(
        self, readout: Readout, batch: Batch, mode: Mode, precision: Precision, use_kernels: bool
    ) -> None:
        self.readout = readout
        self.training = mode == "training"
        self.parameters = dict(readout.named_parameters())
        super().__init__(batch, precision, use_kernels)
        ((_, (self.x,)),) = self.batches
        self.y: Tensor | None = None

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        return (batch.x.detach().clone().requires_grad_(self.training),)

    def run(self, batch: Batch, *inputs: Tensor) -> None:
        self.y = None  # else it and the gradients would count as memory of this step
        for leaf in (self.x, *self.parameters.values()):
            leaf.grad = None
        (self.x,) = inputs
        with kernels(self.use_kernels), products_in(self.precision):
            with forward_in(self.precision, self.x.device), torch.set_grad_enabled(self.training):
                y = self.readout(self.x, batch)
            if self.training:
                y.backward(batch.upstream.to(y.dtype))
        self.y = y.detach()

    def parameter_gradients(self) -> dict[str, Tensor]:
        """Gradients by parameter name; zero for parameters without one."""
        return {
            name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for name, parameter in self.parameters.items()
        }


class NetworkStep(BatchStep):
    """A whole training step: model, loss, backward, Adam."""

    def __init__(
        self, network: Workload, batch: Batch, precision: Precision, use_kernels: bool
    ) -> None:
        self.network = network
        parameters = list(network.parameters())
        self.device = parameters[0].device
        on_cuda = self.device.type == "cuda"
        self.optimizer = torch.optim.Adam(parameters, lr=1e-4, fused=on_cuda, capturable=on_cuda)
        super().__init__(batch, precision, use_kernels)

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        return tuple(tensor.to(self.device) for tensor in self.network.inputs(batch))

    def run(self, batch: Batch, *inputs: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with kernels(self.use_kernels), products_in(self.precision):
            with forward_in(self.precision, self.device):
                loss = self.network.loss(batch, *inputs)
            loss.backward()
        self.optimizer.step()


class MedianWorkload(nn.Module):
    """The median experiment's network on sets of equal size."""

    def __init__(self, case: Case, path: Path) -> None:
        super().__init__()
        self.case = case
        channels = case.out_channels
        embedding: nn.Module = nn.Identity()
        if not (path.equilibrium or path.name == "pyg"):  # others need a network before them
            embedding = ResidualNetwork((1, *case.hidden[:-1], channels))
            case = replace(case, in_channels=channels)
        self.readout = path.build(case)
        self.network = MedianNetwork(embedding, nn.Identity(), channels)

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        return held_out_sets(self.case.sets, self.case.elements, torch.device("cpu"))[:2]

    def loss(self, batch: Batch, *inputs: Tensor) -> Tensor:
        numbers, target = inputs
        y = self.readout(self.network.embedding(numbers.view(-1, 1)), batch)
        return (self.network.predict(y).float() - target).square().mean()


class GINLayer(nn.Module):
    """`h_i -> MLP((1 + eps) h_i + sum of the neighbours' h_j)`."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(()))
        self.mlp = nn.Sequential(
            nn.Linear(channels, 2 * channels), nn.BatchNorm1d(2 * channels), nn.ReLU(),
            nn.Linear(2 * channels, channels), nn.BatchNorm1d(channels), nn.ReLU(),
        )  # fmt: skip

    def forward(self, h: Tensor, edges: Tensor) -> Tensor:
        messages = torch.zeros_like(h).index_add(0, edges[1], h.index_select(0, edges[0]))
        return self.mlp((1 + self.eps) * h + messages)


class GINWorkload(nn.Module):
    """A graph network of five layers with a readout, on random molecules and labels.

    Unlike the molecules experiment's network it has one embedding of atom types and no bond
    features: the lightest such network, so that the readout's share is not made small.
    """

    def __init__(self, case: Case, path: Path) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ATOM_TYPES, case.in_channels)
        self.layers = nn.ModuleList(GINLayer(case.in_channels) for _ in range(GIN_LAYERS))
        self.readout = path.build(case)
        self.head = nn.Linear(case.out_channels, TASKS)

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(0)
        types = torch.randint(ATOM_TYPES, (batch.num_elements,), generator=generator)
        labels = torch.randint(2, (batch.num_sets, TASKS), generator=generator).float()
        return types, random_bonds(batch.sizes, generator), labels

    def loss(self, batch: Batch, *inputs: Tensor) -> Tensor:
        types, edges, labels = inputs
        h = self.embedding(types)
        for layer in self.layers:
            h = layer(h, edges)
        logits = self.head(self.readout(h, batch))
        return functional.binary_cross_entropy_with_logits(logits.float(), labels)


Workload = MedianWorkload | GINWorkload


def random_bonds(sizes: Sequence[int], generator: torch.Generator) -> Tensor:
    """Edges `[2, E]` in both directions between random atoms of the same molecule, about as many
    as real molecules have."""
    parts, first = [], 0
    for size in sizes:
        bonds = torch.randint(size, (2, round(size * BONDS_PER_ATOM)), generator=generator)
        parts.append(torch.cat([bonds, bonds.flip(0)], dim=1) + first)
        first += size
    return torch.cat(parts, dim=1)


def make_step(
    case: Case, batch: Batch, path: Path, mode: Mode, precision: Precision
) -> LayerStep | NetworkStep:
    """The step of a case with the path's readout, on the batch's device."""
    device = batch.x.device
    if case.workload == "layer":
        return LayerStep(path.build(case).to(device), batch, mode, precision, path.kernels)
    network = (GINWorkload if case.workload == "gin" else MedianWorkload)(case, path)
    return NetworkStep(network.to(device), batch, precision, path.kernels)
