"""The summed potential element by element, as the paper writes it: slow, and without derivatives of
its own. The implementations are tested against it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from equipool.ops.resnet_gradient.folding import Affine, Maps, Spec


def naive_value(
    spec: Spec, maps: Maps, norms: Sequence[Affine], x: Tensor, index: Tensor, y: Tensor
) -> Tensor:
    """The potential summed over each row, `[num_rows]`, at `y [num_rows, K]`."""
    z = torch.cat([x, y[index]], 1)
    for j, ((weight, bias), skip) in enumerate(zip(*maps, strict=True)):
        h = z @ weight.T + bias
        if j < len(norms):
            h = torch.tanh(layer_norm(h, h.shape[1:], *norms[j], spec.eps))
        z = h + (z if skip is None else z @ skip[0].T + skip[1])
    return y.new_zeros(len(y)).index_add(0, index, spec.scale / 2 * z.square().sum(1))
