"""A network that is convex in y: its value, its gradient and bounds of its curvature, for each
element.

Notation, for one element: `a_l` are the pre-activations of layer l and `z_l = softplus(a_l)`,

    a_1 = b_1,    a_l = b_l + M_l (g_{l-1} * z_{l-1}),    value = sum of g_L * z_L,

where `b = B y + shift` holds the contributions of y and x alone, and no entry of the mixes `M` and
the gates `g` is negative. Tensors of all layers are concatenated, `[N, H]`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

# Beyond this softplus(a) = a to the last digit of float64. Torch's own threshold, 20, would leave a
# jump of 2e-9, and a function with a jump is not convex.
THRESHOLD = 40.0

SQUARINGS = 5
CHUNK_FLOATS = 1 << 24  # entries of the Gram matrices at a time


class ConvexNetwork(NamedTuple):
    """The part of the network that does not depend on y."""

    sizes: tuple[int, ...]
    gates: Tensor  # [N, H], not negative
    mixes: tuple[Tensor, ...]  # [h_l, h_{l-1}] from the second layer on, not negative

    def layer_gates(self) -> tuple[Tensor, ...]:
        return self.gates.split(self.sizes, -1)


def element_values(network: ConvexNetwork, b: Tensor) -> Tensor:
    """The network's value at each element, `[N, H] -> [N]`."""
    last = _pre_activations(network, b)[-1]
    return (network.layer_gates()[-1] * softplus(last, threshold=THRESHOLD)).sum(-1)


def element_gradients(network: ConvexNetwork, b: Tensor) -> Tensor:
    """Its gradient in `b`, `[N, H] -> [N, H]`."""
    gates = network.layer_gates()
    layers = _pre_activations(network, b)
    by_z = gates[-1]
    found = [by_z * torch.sigmoid(layers[-1])]
    for gate, mix, a in zip(gates[-2::-1], network.mixes[::-1], layers[-2::-1], strict=True):
        by_z = gate * _mixed_back(found[0], mix)
        found.insert(0, by_z * torch.sigmoid(a))
    return torch.cat(found, -1)


def curvature_weights(network: ConvexNetwork, matrix: Tensor) -> Tensor:
    r"""Weights $e$ such that $B^\top \mathrm{diag}(e) B$ exceeds the Hessian in y at every y.

    With $s_l$ the slopes of the softplus, between 0 and 1, and $J_l$ the derivative of $a_l$ in y,
    the Hessian is $\sum_l J_l^\top \mathrm{diag}(d_l s_l (1 - s_l)) J_l$, where $d_L = g_L$ and
    $d_{l-1} \le g_{l-1} M_l^\top d_l$ are the derivatives in $z_l$. Along a direction $v$, write
    $t_l = B_l v$ and $p_l = J_l v$. By Cauchy and Schwarz, unit by unit and for any $\theta > 0$,

    $$p_l^2 = (t_l + M_l (g_{l-1} s_{l-1} p_{l-1}))^2
      \le (1 + \theta) t_l^2
      + (1 + 1/\theta)\, (M_l g_{l-1})\, M_l (g_{l-1} s_{l-1} p_{l-1}^2).$$

    From the last layer down, this turns all squares of $p$ into squares of $t$.

    The matrix is $B$, `[H, K]`, and the weights are `[N, H]`.
    """
    gates, mixes = network.layer_gates(), network.mixes
    totals = [_mixed(gate, mix) for gate, mix in zip(gates[:-1], mixes, strict=True)]
    ratios = _ratios(network, totals, matrix)
    by_z = gates[-1]
    weight = by_z / 4
    found: list[Tensor] = []
    layers = list(zip(gates[:-1], mixes, totals, ratios, strict=True))
    for gate, mix, total, ratio in layers[::-1]:
        found.insert(0, (1 + ratio) * weight)
        passed = gate * _mixed_back((1 + 1 / ratio) * total * weight, mix)
        by_z = gate * _mixed_back(by_z, mix)
        # The largest by_z s (1 - s) + passed s for s between 0 and 1.
        inside = (by_z + passed).square() / (4 * by_z)
        weight = torch.where(passed < by_z, inside, passed)
    return torch.cat([weight, *found], -1)


def largest_eigenvalues(weights: Tensor, matrix: Tensor) -> Tensor:
    r"""An upper bound of the largest eigenvalue of $B^\top \mathrm{diag}(e) B$, for each row
    $e \ge 0$ of the weights: `[R, H]` and `[H, K]` -> `[R]`.

    It is the Schatten norm $(\sum_k \lambda_k^p)^{1/p}$ with $p = 64$, at most $n^{1/64}$ times
    the eigenvalue (1.07 for $n = 64$), where $n$ is the smaller of $H$ and $K$. It uses products
    alone, so a non-finite row does not affect others.
    """
    size, wide = min(matrix.shape), matrix.shape[0] < matrix.shape[1]
    found = []
    for part in weights.split(max(CHUNK_FLOATS // max(size * size, 1), 1)):
        scaled = part.sqrt().unsqueeze(-1) * matrix
        # The smaller of the two Gram matrices, which share their nonzero eigenvalues.
        found.append(_schatten_norms(scaled @ scaled.mT if wide else scaled.mT @ scaled))
    return torch.cat(found)


def _schatten_norms(grams: Tensor) -> Tensor:
    """Each squaring doubles the exponent, starting at 2; scaled on the way, for the range."""
    tiny = torch.finfo(grams.dtype).tiny
    scale = torch.linalg.matrix_norm(grams, keepdim=True).clamp(min=tiny)
    found = scale
    for doubling in range(1, SQUARINGS + 1):
        root = grams / scale
        grams = root @ root
        scale = torch.linalg.matrix_norm(grams, keepdim=True).clamp(min=tiny)
        found = found * scale ** (0.5**doubling)
    return found.flatten()


def _ratios(network: ConvexNetwork, totals: list[Tensor], matrix: Tensor) -> list[Tensor]:
    r"""The $\theta$ of each layer from the second on: the best one for a single unit, averaged over
    directions. Every positive value gives a valid bound, which allows the limits."""
    lengths = matrix.square().sum(-1).split(network.sizes)
    squares = lengths[0]
    found: list[Tensor] = []
    gates = network.layer_gates()[:-1]
    for gate, mix, total, own in zip(gates, network.mixes, totals, lengths[1:], strict=True):
        passed = total * _mixed(gate * squares, mix)
        tiny = torch.finfo(passed.dtype).tiny
        found.append((passed / own.clamp(min=tiny)).sqrt().clamp(1e-3, 1e3))
        squares = (own.sqrt() + passed.sqrt()).square()
    return found


def _pre_activations(network: ConvexNetwork, b: Tensor) -> list[Tensor]:
    own = b.split(network.sizes, -1)
    found = [own[0]]
    for gate, mix, b_l in zip(network.layer_gates()[:-1], network.mixes, own[1:], strict=True):
        z = softplus(found[-1], threshold=THRESHOLD)
        found.append(b_l + _mixed(gate * z, mix))
    return found


def _mixed(z: Tensor, mix: Tensor) -> Tensor:
    """The product in the mix's precision, its result in that of z."""
    return (z.to(mix.dtype) @ mix.T).to(z.dtype)


def _mixed_back(by_a: Tensor, mix: Tensor) -> Tensor:
    return (by_a.to(mix.dtype) @ mix).to(by_a.dtype)
