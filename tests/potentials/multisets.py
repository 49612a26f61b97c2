"""Multisets of numbers as sets of vectors, pooled together, and a distance of such vectors."""

import torch

from cases import flatten

MULTISETS = [
    [1.5], [-2.0, 0.5, 3.0], [4.0, -1.0, 2.5, 2.0], [], [-3.0, -1.25, -2.5, -0.75, -4.0],
    [1.0, 1.0, -2.0, 3.0, 1.0, 5.0], [-1.5, -1.5, -1.5, -1.5], [2.0, 0.0, 0.0, 2.0],
]  # fmt: skip


def make_batch(channels):
    """Each multiset as a set of vectors, its coordinates in different orders, signs and scales."""
    columns = (lambda v: v, lambda v: 0.25 - v, lambda v: v.roll(1) / 2)[:channels]
    tensors = [torch.tensor(values, dtype=torch.float64) for values in MULTISETS]
    return [torch.stack([column(v) for column in columns], dim=-1) for v in tensors]


def pool(layer, sets):
    """The sets pooled in one ragged batch whose elements are interleaved."""
    x, index = flatten(sets)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(3))
    return layer(x[order], index[order], dim_size=len(sets))


def euclidean(x, y):
    return torch.linalg.vector_norm(x - y, dim=-1)
