"""Small networks around a readout: the whole training step is what a user pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from equipool.bench.cases import Batch, Case, Precision
from equipool.bench.paths import Path
from equipool.bench.precision import forward_in, products_in
from equipool.bench.readouts import Readout
from equipool.experiments.residual import ResidualNetwork
from equipool.ops.availability import kernels

ATOM_TYPES = 100
TASKS = 128
BONDS_PER_ATOM = 28 / 26
GIN_LAYERS = 5
HEAD = 128


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


class GIN(nn.Module):
    """A graph network of five layers with a readout, and its loss on random molecules and labels.

    Atoms are embedded by type, bonds carry no features: the network is as light as it gets, so
    that the readout's share is not made small.
    """

    types: Tensor
    edges: Tensor
    labels: Tensor

    def __init__(self, case: Case, batch: Batch, readout: Readout) -> None:
        super().__init__()
        self.batch = batch
        self.embedding = nn.Embedding(ATOM_TYPES, case.in_channels)
        self.layers = nn.ModuleList(GINLayer(case.in_channels) for _ in range(GIN_LAYERS))
        self.readout = readout
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
    """Edges `[2, E]`, both ways, between random atoms of the same molecule; about as many as
    molecules have."""
    parts, first = [], 0
    for size in sizes:
        bonds = torch.randint(size, (2, round(size * BONDS_PER_ATOM)), generator=generator)
        parts.append(torch.cat([bonds, bonds.flip(0)], dim=1) + first)
        first += size
    return torch.cat(parts, dim=1)


class MedianNetwork(nn.Module):
    """Learns the median of a set of numbers: a readout of the raw numbers, then a head.

    Args:
        case: sizes; `hidden` is the potential's.
        batch: its elements are the numbers.
        readout: pools them.
        embed: whether a network of the potential's width embeds each number before it is pooled,
            as pooling without a network of its own needs.
    """

    target: Tensor
    numbers: Tensor

    def __init__(self, case: Case, batch: Batch, readout: Readout, *, embed: bool) -> None:
        super().__init__()
        self.batch = batch
        sizes = (case.in_channels, *case.hidden[:-1], case.out_channels)
        self.embedding = ResidualNetwork(sizes) if embed else nn.Identity()
        self.readout = readout
        self.head = nn.Sequential(nn.Linear(case.out_channels, HEAD), nn.ReLU(), nn.Linear(HEAD, 1))
        sets = batch.x.cpu().split(list(batch.sizes))
        self.register_buffer("numbers", batch.x)
        self.register_buffer("target", torch.stack([numbers.median() for numbers in sets]))

    def loss(self) -> Tensor:
        y = self.readout(self.embedding(self.numbers), self.batch)
        return (self.head(y).squeeze(-1).float() - self.target).square().mean()


def make_network(case: Case, batch: Batch, path: Path) -> GIN | MedianNetwork:
    """The network of a case with the path's readout."""
    if case.workload == "gin":
        return GIN(case, batch, path.build(case, batch))
    if path.equilibrium or path.name == "pyg":
        return MedianNetwork(case, batch, path.build(case, batch), embed=False)
    embedded = replace(case, in_channels=case.out_channels)
    return MedianNetwork(case, batch, path.build(embedded, batch), embed=True)


class NetworkStep:
    """A whole training step: model, loss, backward, Adam."""

    def __init__(
        self, network: GIN | MedianNetwork, precision: Precision, use_kernels: bool
    ) -> None:
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
