"""Folding and padding change the network's form, not the network."""

from itertools import pairwise

import pytest
import torch

from equipool.ops.resnet_gradient.folding import fold


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


@pytest.mark.parametrize(
    "sizes", [(5, 3), (5, 5), (5, 5, 2), (5, 7, 7, 4), (5, 6, 9, 9, 2), (5, 8, 6, 7, 4, 3)]
)
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


def flat(folded):
    return [*folded[:3], *folded.from_hidden]


@pytest.mark.parametrize("sizes", [(7, 16, 3), (16, 7, 8), (5, 5)])
def test_aligned_columns_hold_the_same_and_zeros(sizes):
    network = make((5, *sizes))
    folded, aligned = fold(*network, in_channels=2), fold(*network, in_channels=2, alignment=8)
    widths = [size + -size % 8 for size in sizes]
    starts = [sum(widths[:j]) for j in range(len(sizes))]
    rows = torch.cat(
        [start + torch.arange(size) for start, size in zip(starts, sizes, strict=True)]
    )
    for before, after in zip(folded[:3], aligned[:3], strict=True):
        assert after.shape == (sum(widths), *before.shape[1:])
        assert torch.allclose(after[rows], before, rtol=1e-12)
    for j, (before, after) in enumerate(zip(folded.from_hidden, aligned.from_hidden, strict=True)):
        assert after.shape == (sum(widths[j + 1 :]), widths[j])
        later = rows[sum(sizes[: j + 1]) :] - starts[j + 1]
        assert torch.allclose(after[later, : sizes[j]], before, rtol=1e-12)
    for before, after in zip(flat(folded), flat(aligned), strict=True):
        assert after.count_nonzero() == before.count_nonzero()


def test_gradients_pass_through_the_padding():
    layers, skips = make((5, 7, 16, 3))
    parameters = [tensor.requires_grad_() for pair in (*layers, *skips) for tensor in pair]

    def gradients(alignment):
        tensors = flat(fold(layers, skips, 2, alignment))
        total = torch.stack([tensor.sin().sum() for tensor in tensors]).sum()
        return torch.autograd.grad(total, parameters)

    for found, expected in zip(gradients(8), gradients(1), strict=True):
        assert torch.allclose(found, expected, rtol=1e-10)
