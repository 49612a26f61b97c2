"""Folding a residual network's skips into the matrices that read its input and its activations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

ALIGNMENT = 8  # columns: 16 bytes in the shortest precision

Affine = tuple[Tensor, Tensor]  # weight [b, a], bias [b]


class Folded(NamedTuple):
    """The network with every pre-activation as a sum of what each earlier part gives it:

        u_l = U_l [x; y] + c_l + sum over j < l of V_lj h_j,     h_l = tanh(LayerNorm_l(u_l)).

    All layers' pre-activations lie side by side, `H = sum of sizes` columns in all.
    """

    from_x: Tensor  # [H, C]
    from_y: Tensor  # [H, K]
    constant: Tensor  # [H]
    from_hidden: tuple[Tensor, ...]  # for layer j: [columns of the layers after j, size of j]


def fold(layers: Sequence[Affine], skips: Sequence[Affine | None], in_channels: int) -> Folded:
    """Fold `z_l = S_l z_(l-1) + h_l`, with a skip of None for the identity.

    The last layer has no activation, so its own map and its skip add up to one.
    """
    last = len(layers) - 1
    input_map: Tensor | None = None  # z_(l-1) reads [x; y] through this; None: as it is
    hidden_maps: list[Tensor | None] = []  # and h_j through these
    constant = torch.zeros_like(layers[0][0][0])
    rows: list[Tensor] = []
    constants: list[Tensor] = []
    columns: list[list[Tensor]] = [[] for _ in range(last)]
    for i, ((weight, bias), skip) in enumerate(zip(layers, skips, strict=True)):
        matrix, offset = (weight, bias) if i < last else _join((weight, bias), skip)
        rows.append(_through(matrix, input_map))
        constants.append(offset + matrix @ constant)
        for j, hidden_map in enumerate(hidden_maps):
            columns[j].append(_through(matrix, hidden_map))
        if skip is not None:
            input_map = _through(skip[0], input_map)
            hidden_maps = [_through(skip[0], hidden_map) for hidden_map in hidden_maps]
            constant = skip[1] + skip[0] @ constant
        hidden_maps.append(None)
    from_x, from_y = torch.cat(rows).tensor_split([in_channels], dim=1)
    return Folded(from_x, from_y, torch.cat(constants), tuple(torch.cat(c) for c in columns))


def _through(matrix: Tensor, inner: Tensor | None) -> Tensor:
    return matrix if inner is None else matrix @ inner


def _join(layer: Affine, skip: Affine | None) -> Affine:
    weight, bias = layer
    if skip is None:
        eye = torch.eye(weight.shape[0], dtype=weight.dtype, device=weight.device)
        return weight + eye, bias
    return weight + skip[0], bias + skip[1]


def align(folded: Folded, sizes: Sequence[int]) -> Folded:
    """Pad each layer's columns with zeros to a multiple of the alignment, which fast matrix
    products want. Padding takes part in no normalisation, so it changes nothing."""
    pads = [-size % ALIGNMENT for size in sizes]
    return Folded(
        _pad_rows(folded.from_x, sizes, pads),
        _pad_rows(folded.from_y, sizes, pads),
        _pad_rows(folded.constant.unsqueeze(1), sizes, pads).squeeze(1),
        tuple(
            torch.nn.functional.pad(_pad_rows(weight, sizes[j + 1 :], pads[j + 1 :]), (0, pads[j]))
            for j, weight in enumerate(folded.from_hidden)
        ),
    )


def _pad_rows(matrix: Tensor, sizes: Sequence[int], pads: Sequence[int]) -> Tensor:
    if not any(pads):
        return matrix
    parts = matrix.split(list(sizes))
    return torch.cat(
        [
            torch.nn.functional.pad(part, (0, 0, 0, pad))
            for part, pad in zip(parts, pads, strict=True)
        ]
    )
