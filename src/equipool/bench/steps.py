"""The steps that are timed: of the layer alone, and of small networks around it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from equipool.bench.cases import Batch, Case, Mode, Precision
from equipool.bench.paths import Path, Readout, UnavailableError
from equipool.experiments.median.data import held_out_sets
from equipool.experiments.median.network import MedianNetwork
from equipool.experiments.residual import ResidualNetwork
from equipool.ops.availability import kernels

PRECISIONS: tuple[Precision, ...] = ("float32", "tf32", "bf16")

ATOM_TYPES = 100
TASKS = 128
BONDS_PER_ATOM = 28 / 26
GIN_LAYERS = 5


def check_precision(precision: Precision, device: torch.device) -> None:
    """Raise an `UnavailableError` if the device lacks the precision."""
    if precision == "tf32" and device.type != "cuda":
        raise UnavailableError("tf32 needs a CUDA device")


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


class LayerStep:
    """A forward pass of a readout, and in training its backward pass to the elements and all
    parameters. Keeps the latest output and gradients."""

    def __init__(
        self, readout: Readout, batch: Batch, mode: Mode, precision: Precision, use_kernels: bool
    ) -> None:
        self.readout = readout
        self.batch = batch
        self.mode = mode
        self.precision = precision
        self.use_kernels = use_kernels
        self.x = batch.x.detach().clone().requires_grad_(mode == "training")
        self.parameters = dict(readout.named_parameters())
        self.y: Tensor | None = None
        self.gradients: tuple[Tensor | None, ...] = ()

    def __call__(self) -> None:
        self.y, self.gradients = None, ()  # else they would count as memory of this step
        training = self.mode == "training"
        with kernels(self.use_kernels), products_in(self.precision):
            with forward_in(self.precision, self.x.device), torch.set_grad_enabled(training):
                y = self.readout(self.x, self.batch)
            if training:
                self.gradients = torch.autograd.grad(
                    y,
                    [self.x, *self.parameters.values()],
                    self.batch.upstream.to(y.dtype),
                    allow_unused=True,
                )
        self.y = y.detach()

    def parameter_gradients(self) -> dict[str, Tensor]:
        """Gradients by parameter name; zero for parameters without one."""
        return {
            name: torch.zeros_like(parameter) if gradient is None else gradient
            for (name, parameter), gradient in zip(
                self.parameters.items(), self.gradients[1:], strict=True
            )
        }


class Workload(nn.Module):
    """A network with a batch of its own."""

    @abstractmethod
    def loss(self) -> Tensor:
        """The loss on the batch."""


class NetworkStep:
    """A whole training step: model, loss, backward, Adam."""

    def __init__(self, network: Workload, precision: Precision, use_kernels: bool) -> None:
        self.network = network
        self.precision = precision
        self.use_kernels = use_kernels
        parameters = list(network.parameters())
        self.device = parameters[0].device
        on_cuda = self.device.type == "cuda"
        self.optimizer = torch.optim.Adam(parameters, lr=1e-4, fused=on_cuda, capturable=on_cuda)

    def __call__(self) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        with kernels(self.use_kernels), products_in(self.precision):
            with forward_in(self.precision, self.device):
                loss = self.network.loss()
            loss.backward()
        self.optimizer.step()
        return loss.detach()


class MedianWorkload(Workload):
    """The median experiment's network on sets of equal size."""

    numbers: Tensor
    target: Tensor

    def __init__(self, case: Case, batch: Batch, path: Path) -> None:
        super().__init__()
        embeds = path.equilibrium or path.name == "pyg"
        if embeds:
            embedding: nn.Module = nn.Identity()
            readout = path.build(case)
        else:  # pooling without a network of its own needs one before it
            embedding = ResidualNetwork((1, *case.hidden[:-1], case.out_channels))
            readout = path.build(replace(case, in_channels=case.out_channels))
        self.network = MedianNetwork(embedding, SideBySide(readout, batch), case.out_channels)
        numbers, target, _ = held_out_sets(case.sets, case.elements, torch.device("cpu"))
        self.register_buffer("numbers", numbers)
        self.register_buffer("target", target)

    def loss(self) -> Tensor:
        return (self.network(self.numbers).float() - self.target).square().mean()


class SideBySide(nn.Module):
    """A readout behind the call with padded sets, `[B, N, C] -> [B, K]`."""

    def __init__(self, readout: Readout, batch: Batch) -> None:
        super().__init__()
        self.readout = readout
        self.batch = batch

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(x.flatten(0, 1), self.batch)


class GINLayer(nn.Module):
    """`h_i -> MLP((1 + eps) h_i + sum of the neighbours' h_j)`."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(()))
        self.mlp = nn.Sequential(
            nn.Linear(channels, 2 * channels),
            nn.BatchNorm1d(2 * channels),
            nn.ReLU(),
            nn.Linear(2 * channels, channels),
            nn.BatchNorm1d(channels),
            nn.ReLU(),
        )

    def forward(self, h: Tensor, edges: Tensor) -> Tensor:
        messages = torch.zeros_like(h).index_add(0, edges[1], h.index_select(0, edges[0]))
        return self.mlp((1 + self.eps) * h + messages)


class GINWorkload(Workload):
    """A graph network of five layers with a readout, on random molecules and labels.

    Unlike the molecules experiment's network it has one embedding of atom types and no bond
    features: the lightest such network, so that the readout's share is not made small.
    """

    types: Tensor
    edges: Tensor
    labels: Tensor

    def __init__(self, case: Case, batch: Batch, path: Path) -> None:
        super().__init__()
        self.batch = batch
        self.embedding = nn.Embedding(ATOM_TYPES, case.in_channels)
        self.layers = nn.ModuleList(GINLayer(case.in_channels) for _ in range(GIN_LAYERS))
        self.readout = path.build(case)
        self.head = nn.Linear(case.out_channels, TASKS)
        generator = torch.Generator().manual_seed(0)
        types = torch.randint(ATOM_TYPES, (batch.num_elements,), generator=generator)
        labels = torch.randint(2, (batch.num_sets, TASKS), generator=generator).float()
        self.register_buffer("types", types)
        self.register_buffer("edges", random_bonds(batch.sizes, generator))
        self.register_buffer("labels", labels)

    def loss(self) -> Tensor:
        h = self.embedding(self.types)
        for layer in self.layers:
            h = layer(h, self.edges)
        logits = self.head(self.readout(h, self.batch))
        return functional.binary_cross_entropy_with_logits(logits.float(), self.labels)


def random_bonds(sizes: Sequence[int], generator: torch.Generator) -> Tensor:
    """Edges `[2, E]` in both directions between random atoms of the same molecule, about as many
    as real molecules have."""
    parts, first = [], 0
    for size in sizes:
        bonds = torch.randint(size, (2, round(size * BONDS_PER_ATOM)), generator=generator)
        parts.append(torch.cat([bonds, bonds.flip(0)], dim=1) + first)
        first += size
    return torch.cat(parts, dim=1)


def make_network(case: Case, batch: Batch, path: Path) -> Workload:
    """The network of a case with the path's readout."""
    return (GINWorkload if case.workload == "gin" else MedianWorkload)(case, batch, path)
