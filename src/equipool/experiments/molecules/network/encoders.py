"""Vectors for features that are categories."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn


class MultiHot(nn.Module):
    """Ones in the places of the categories, the features side by side.

    Args:
        sizes: categories of each feature.

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
    """The sum of an embedding of each feature, as a product with their `MultiHot`: its derivative
    is a product, too, and not a sum in an order of the device's own choice.

    Args:
        sizes: categories of each feature.
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
        """The embeddings of each feature, `[size, channels]`, views of the weight."""
        return self.weight.detach().split(self.sizes)

    def forward(self, features: Tensor) -> Tensor:
        return features.to(self.weight.dtype) @ self.weight
