"""The network that the operation differentiates: its shape, and its skips folded into the matrices
that read its input and its activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

ALIGNMENT = 8  # columns: 16 bytes in the shortest precision

Affine = tuple[Tensor, Tensor]  # weight [b, a] of a map or [b] of a normalisation, and bias [b]


@dataclass(frozen=True)
class Spec:
    """Shape and precision of a residual potential."""

    sizes: tuple[int, ...]  # of the layers, the last one included
    scale: float  # the potential is half of this times the sum of the last layer's squares
    eps: float  # added to the variance in the normalisations
    product_dtype: torch.dtype  # of the matrix products' operands; sums are in float32 at least


class Folded(NamedTuple):
    """The network with every pre-activation as a sum of what each earlier part gives it:

        u_l = U_l [x; y] + c_l + sum over j < l of V_lj h_j,     h_l = tanh(LayerNorm_l(u_l)).

    All layers' pre-activations lie side by side, `H = sum of sizes` columns in all.
    """

    from_x: Tensor  # [H, C]
    from_y: Tensor  # [H, K]
    constant: Tensor  # [H]
    from_hidden: tuple[Tensor, ...]  # for layer j: [columns of the layers after j, size of j]


class Maps(NamedTuple):
    """A residual network: its layers, and as many skips, None for the identity."""

    layers: Sequence[Affine]
    skips: Sequence[Affine | None]


class Parameters(NamedTuple):
    """A tensor for each hidden layer: what is learned, or its cotangents."""

    from_hidden: tuple[Tensor, ...]
    gammas: tuple[Tensor, ...]
    betas: tuple[Tensor, ...]

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Parameters:
        hidden, every = len(tensors) // 3, tuple(tensors)
        return cls(every[:hidden], every[hidden : 2 * hidden], every[2 * hidden :])


def fold(
    layers: Sequence[Affine], skips: Sequence[Affine | None], in_channels: int, alignment: int = 1
) -> Folded:
    """Fold `z_l = S_l z_(l-1) + s_l + h_l`, with a skip of None for the identity.

    The last layer has no activation, so its own map and its skip add up to one. From there to the
    first: where the layers after `l` read `V z_l + c`, they and `l` itself read

        [W_l; V S_l] z_(l-1) + [b_l; V s_l + c],

    and `h_l`, which is added to `z_l` as it is, through `V`.

    Each layer's columns are padded with zeros to a multiple of the alignment. Padding takes part in
    no normalisation, so it changes nothing.
    """
    (weight, bias), skip = layers[-1], skips[-1]
    if skip is None:
        weight = weight + torch.eye(weight.shape[0], dtype=weight.dtype, device=weight.device)
    else:
        weight, bias = weight + skip[0], bias + skip[1]
    matrix, constant = _stack(weight, alignment), _stack(bias, alignment)
    from_hidden: list[Tensor] = []
    for (weight, bias), skip in zip(layers[-2::-1], skips[-2::-1], strict=True):
        pad = -matrix.shape[1] % alignment
        from_hidden.insert(0, torch.nn.functional.pad(matrix, (0, pad)) if pad else matrix)
        if skip is not None:
            matrix, constant = matrix @ skip[0], torch.addmv(constant, matrix, skip[1])
        matrix, constant = _stack(weight, alignment, matrix), _stack(bias, alignment, constant)
    # Not `tensor_split`, whose derivative fills both parts with zeros and adds them.
    from_x, from_y = matrix.split([in_channels, matrix.shape[1] - in_channels], dim=1)
    return Folded(from_x, from_y, constant, tuple(from_hidden))


def _stack(rows: Tensor, alignment: int, *below: Tensor) -> Tensor:
    """Rows, padded to the alignment, and what is below them."""
    pad = -rows.shape[0] % alignment
    padding = [rows.new_zeros(pad, *rows.shape[1:])] if pad else []
    blocks = [rows, *padding, *below]
    return torch.cat(blocks) if len(blocks) > 1 else rows


def unavailable(what: str) -> RuntimeError:
    """The error for derivatives that the hand-written operation does not have."""
    return RuntimeError(
        f"{what} not available with the fast operation: build the potential with "
        "ResNetPotential(..., factored=False)"
    )


SECOND = "the gradient of the layer's gradient is"
BATCHED = "batched gradients (is_grads_batched, jacobian(vectorize=True)) are"
