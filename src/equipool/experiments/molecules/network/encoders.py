"""Encodings of categorical features, and scaling of outputs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn


class MultiHot(nn.Module):
    """Concatenated one-hot encodings of categorical features.

    Args:
        sizes: number of categories of each feature.

    Shapes:
        `[N, F]` integers, each from 0 to its feature's size - 1 -> `[N, sum(sizes)]`, float32.

    Example:
        >>> MultiHot((2, 3))(torch.tensor([[1, 0]]))
        tensor([[0., 1., 1., 0., 0.]])
    """

    first: Tensor

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.size = sum(sizes)
        first = torch.tensor([0, *accumulate(sizes[:-1])])
        self.register_buffer("first", first, persistent=False)

    def forward(self, categories: Tensor) -> Tensor:
        zeros = torch.zeros(categories.shape[0], self.size, device=categories.device)
        return zeros.scatter(1, categories + self.first, 1.0)


class CategoryEncoder(nn.Module):
    """The sum of an embedding of each feature, computed as a matrix product with their `MultiHot`:
    the derivative is a product too, and deterministic, unlike that of a lookup.

    Args:
        sizes: number of categories of each feature.
        channels: size of the embeddings.

    Shapes:
        `[N, sum(sizes)] -> [N, channels]`.

    Example:
        >>> features = MultiHot((2, 3))(torch.tensor([[1, 0]]))
        >>> CategoryEncoder((2, 3), 8)(features).shape
        torch.Size([1, 8])
    """

    def __init__(self, sizes: Sequence[int], channels: int) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        self.weight = nn.Parameter(torch.empty(sum(sizes), channels))
        for table in self.tables():
            nn.init.xavier_uniform_(table)

    def tables(self) -> tuple[Tensor, ...]:
        """The embedding table of each feature, `[size, channels]`, as views of the weight."""
        return self.weight.detach().split(self.sizes)

    def forward(self, features: Tensor) -> Tensor:
        return features.to(self.weight.dtype) @ self.weight


class Units(nn.Module):
    r"""$y = \mu + \sigma z$ for each label, computed in float32 or wider, so that the network's
    outputs $z$ are of order 1 whatever the labels' units.

    Args:
        mean: $\mu$ of each label, `[L]`.
        deviation: $\sigma$ of each label, `[L]`.

    Example:
        >>> Units(torch.tensor([100.0]), torch.tensor([5.0]))(torch.tensor([[2.0]]))
        tensor([[110.]])
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean.clone())
        self.register_buffer("deviation", deviation.clone())

    def forward(self, z: Tensor) -> Tensor:
        wide = z.to(torch.promote_types(z.dtype, torch.float32))
        return torch.addcmul(self.mean, wide, self.deviation)
