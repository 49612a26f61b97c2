"""Conversion of the layer that PyTorch Geometric ships."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch_geometric.nn.aggr import equilibrium as packaged

from equipool.potentials.base import Potential, wide
from equipool.pyg.adapter import EquilibriumAggregation
from equipool.regularizers import SquaredNorm
from equipool.solvers import GradientDescent


class InputSkipPotential(Potential):
    r"""The potential of PyTorch Geometric's own layer, $F(x, y) = h_L$, a single number of any
    sign, with

    $$z = [x; y], \quad h_0 = z, \quad
      h_l = S_l z + \tanh(\mathrm{LN}(W_l h_{l-1} + b_l)), \quad
      h_L = S_L z + W_L h_{L-1} + c.$$

    Every skip $S_l$ is an affine map of the input; the paper's takes the previous layer. And the
    output is not squared: no choice of weights makes it a `ResNetPotential`. Terms constant in y do
    not change its minimum and would be parameters without gradient: $S_{L-1}$ and $S_L$ have no
    bias, and $c$ is a buffer.

    Args:
        in_channels: size of an element.
        out_channels: size of a set's output.
        hidden: sizes of the hidden layers; the output is not among them.

    Shapes:
        `x [N, in_channels]`, `y [N, out_channels]` -> `[N]`.

    Example:
        >>> potential = InputSkipPotential(4, 8, hidden=(16, 8))
        >>> potential(torch.randn(5, 4), torch.zeros(5, 8)).shape
        torch.Size([5])
    """

    constant: Tensor

    def __init__(self, in_channels: int, out_channels: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.hidden = tuple(hidden)
        size = in_channels + out_channels
        sizes = (size, *self.hidden)
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.norms = nn.ModuleList(nn.LayerNorm(b) for b in self.hidden)
        last = len(self.hidden) - 1
        self.skips = nn.ModuleList(
            nn.Linear(size, b, bias=i < last) for i, b in enumerate(self.hidden)
        )
        self.last_linear = nn.Linear(sizes[-1], 1, bias=False)
        self.last_skip = nn.Linear(size, 1, bias=False)
        self.register_buffer("constant", torch.zeros(1))

    def reset_parameters(self) -> None:
        """Draw the weights as `torch.nn.Linear` does."""
        for module in (*self.linears, *self.norms, *self.skips, self.last_linear, self.last_skip):
            cast(nn.Linear, module).reset_parameters()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = torch.cat([x, y], dim=-1)
        h = z
        for linear, norm, skip in zip(self.linears, self.norms, self.skips, strict=True):
            h = skip(z) + torch.tanh(norm(linear(h)))
        return (self.last_skip(z) + self.last_linear(h) + self.constant).squeeze(-1)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, hidden={self.hidden}"


def from_pyg(layer: packaged.EquilibriumAggregation) -> EquilibriumAggregation:
    r"""A layer that computes what PyTorch Geometric's own `EquilibriumAggregation` computes for a
    set that is alone in its batch, with a copy of its weights.

    Its energy is $\mathrm{softplus}(\lambda) \lVert y \rVert^2 + \frac{1}{N} \sum_i F(x_i, y)$
    with an `InputSkipPotential`, its solver gradient descent with step size $\mathrm{softplus}$ of
    `_lr` and momentum $\mathrm{sigmoid}$ of `_mom`. Both stay learned, and the gradients agree.

    One difference is intended: in a batch of $B$ sets PyTorch Geometric divides the regularizer by
    $B$, so that the output of a set depends on the number of other sets. Here every set gets the
    output that it has there alone.

    Raises:
        TypeError: layer has another type; subclasses are not supported.
        ValueError: a part of layer is not PyTorch Geometric's own, or a number has no equivalent.

    Example:
        >>> from torch_geometric.nn import aggr
        >>> theirs = aggr.EquilibriumAggregation(3, 8, num_layers=[16, 16])
        >>> ours = from_pyg(theirs)
        >>> x = torch.randn(5, 3)
        >>> bool(torch.allclose(ours(x), theirs(x), atol=1e-5))
        True
    """
    if type(layer) is not packaged.EquilibriumAggregation:
        raise TypeError(
            f"layer is a {type(layer).__module__}.{type(layer).__qualname__}, expected a "
            "torch_geometric.nn.aggr.EquilibriumAggregation; subclasses cannot be converted"
        )
    *skips, last_skip = layer.potential.res_trans
    in_channels, out_channels = last_skip.in_features - layer.output_dim, layer.output_dim
    hidden = [skip.out_features for skip in skips]
    check_parts(layer, packaged.EquilibriumAggregation(in_channels, out_channels, hidden))
    rate, momentum = layer.optimizer._lr, layer.optimizer._mom
    solver = GradientDescent(number(softplus, rate), number(torch.sigmoid, momentum))
    solver.raw_learning_rate.raw.requires_grad_(rate.requires_grad)
    solver.raw_momentum.raw.requires_grad_(momentum.requires_grad)
    potential = InputSkipPotential(in_channels, out_channels, hidden)
    converted = EquilibriumAggregation(
        in_channels, out_channels, potential=potential, solver=solver, steps=layer.grad_iter,
        regularizer=SquaredNorm(number(softplus, layer.lamb), layer.lamb.requires_grad),
        scaling="mean",
    ).to(layer.lamb)  # fmt: skip
    copy_potential(layer.potential, potential)
    return converted.train(layer.training)


def number(constrain: Callable[[Tensor], Tensor], learned: Tensor) -> float:
    """The number that a learned scalar stands for."""
    return float(constrain(wide(learned.detach())))


@torch.no_grad()
def copy_potential(source: packaged.ResNetPotential, target: InputSkipPotential) -> None:
    *layers, last = source.layers
    *skips, last_skip = source.res_trans
    copy_parameters(last, target.last_linear)
    copy_parameters(last_skip, target.last_skip)
    target.constant.copy_(last_skip.bias + (last(skips[-1].bias) if skips else last.bias))
    for i, ((linear, norm, _), skip) in enumerate(zip(layers, skips, strict=True)):
        copy_parameters(linear, target.linears[i])
        copy_parameters(norm, target.norms[i])
        copy_parameters(skip, target.skips[i])


def copy_parameters(source: nn.Module, target: nn.Module) -> None:
    """Copy the parameters that target has; frozen ones stay frozen."""
    for name, parameter in target.named_parameters():
        parameter.copy_(source.get_parameter(name))
        parameter.requires_grad_(source.get_parameter(name).requires_grad)


def check_parts(layer: nn.Module, new: nn.Module) -> None:
    """Check that the parts are those of a new layer, as far as they print."""
    for name, expected in new.named_children():
        found = layer.get_submodule(name)
        if str(found) != str(expected):
            raise ValueError(f"layer.{name} is {found}, expected that of a new layer: {expected}")
