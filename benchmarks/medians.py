"""A small network for the median of numbers, and its training in plain torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import equipool
from equipool.experiments.median import medians, sample_sets


class MedianNetwork(nn.Module):
    """Embeds the numbers of sets `[B, N]`, pools them with `layer`, and reads the median `[B]`."""

    def __init__(self, layer: nn.Module, elements: int, channels: int, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Sequential(nn.Linear(1, width), nn.GELU(), nn.Linear(width, elements))
        self.layer = layer
        self.head = nn.Sequential(nn.Linear(channels, width), nn.GELU(), nn.Linear(width, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(x.unsqueeze(-1)))).squeeze(-1)


def draw(count: int, set_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sets `[count, N]` of the median experiment, and their medians `[count]`."""
    x, _ = sample_sets((count,), set_size, generator)
    return x, medians(x)


def train(
    network: nn.Module,
    examples: Callable[[torch.Generator], tuple[Tensor, ...]],
    *,
    steps: int,
    rate: float,
    seed: int = 0,
    aux_weight: float = 0.0,
    clip: float | None = 1.0,
    warm_up: int = 0,
    decay: bool = True,
    solver_rate: float = 1.0,
) -> Tensor:
    """Adam on the squared error, with a cosine schedule if `decay`; the loss of each step. The
    inner solver's own parameters learn `solver_rate` times as fast."""
    device = next(network.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    inner = [p for name, p in network.named_parameters() if ".solver." in f".{name}"]
    others = [p for name, p in network.named_parameters() if ".solver." not in f".{name}"]
    adam = torch.optim.Adam([{"params": others}, {"params": inner, "lr": rate * solver_rate}], rate)
    begin = torch.optim.lr_scheduler.LambdaLR(adam, lambda n: min(1.0, (n + 1) / max(warm_up, 1)))
    end = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps) if decay else None
    losses = []
    for _ in range(steps):
        *inputs, target = (part.to(device) for part in examples(generator))
        with equipool.record(diagnostics=False) as solutions:
            loss = (network(*inputs) - target).square().mean()
        aux = aux_weight * solutions.aux_loss if aux_weight else 0.0
        adam.zero_grad()
        (loss + aux).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(network.parameters(), clip)
        adam.step()
        (end if end is not None and len(losses) >= warm_up else begin).step()
        losses.append(loss.detach())
    return torch.stack(losses).cpu()
