"""Folding and padding change the network's form, not the network."""

from itertools import pairwise

import pytest
import torch

from equipool.ops.resnet_gradient.folding import ALIGNMENT, align, fold


def make(sizes):
    torch.manual_seed(0)
    pairs = list(pairwise(sizes))

    def affine(a, b):
        return torch.randn(b, a).double(), torch.randn(b).double()

    layers = [affine(a, b) for a, b in pairs]
    return layers, [None if a == b else affine(a, b) for a, b in pairs]


def plain(layers, skips, z):
    """The network as written: its hidden activations (here just tanh) and its last output."""
    hidden = []
    for i, ((weight, bias), skip) in enumerate(zip(layers, skips, strict=True)):
        h = weight @ z + bias
        if i < len(layers) - 1:
            h = h.tanh()
            hidden.append(h)
        z = h + (z if skip is None else skip[0] @ z + skip[1])
    return hidden, z


@pytest.mark.parametrize("sizes", [(5, 3), (5, 5, 2), (5, 7, 7, 4), (5, 6, 9, 9, 2), (5, 5)])
def test_folded_network_is_the_network(sizes):
    layers, skips = make(sizes)
    folded = fold(layers, skips, in_channels=2)
    z = torch.randn(5).double()
    hidden, output = plain(layers, skips, z)
    u = folded.from_x @ z[:2] + folded.from_y @ z[2:] + folded.constant
    start = 0
    for j, h in enumerate(hidden):
        start += len(h)
        assert torch.allclose(u[start - len(h) : start].tanh(), h, atol=1e-12)
        u[start:] += folded.from_hidden[j] @ h
    assert torch.allclose(u[start:], output, atol=1e-12)


def test_aligned_columns_hold_the_same_and_zeros():
    sizes = (7, 16, 3)
    layers, skips = make((5, *sizes))
    folded = fold(layers, skips, in_channels=2)
    aligned = align(folded, sizes)
    assert aligned.constant.shape == (8 + 16 + 8,)
    keep = torch.tensor([*range(7), *range(8, 24), *range(24, 27)])
    assert torch.equal(aligned.from_y[keep], folded.from_y)
    assert torch.equal(aligned.from_hidden[0][keep[7:] - 8, :7], folded.from_hidden[0])
    assert all(weight.shape[1] % ALIGNMENT == 0 for weight in aligned.from_hidden)
    assert aligned.from_y.count_nonzero() == folded.from_y.count_nonzero()
    assert aligned.from_hidden[0].count_nonzero() == folded.from_hidden[0].count_nonzero()
