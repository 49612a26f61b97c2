"""Conversion of the layer that PyTorch Geometric ships."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch_geometric.nn.aggr import equilibrium as packaged

from equipool.learned_scalars import LearnedScalar
from equipool.potentials.base import Potential
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
    in_channels, hidden = read_sizes(layer)
    potential = InputSkipPotential(in_channels, layer.output_dim, hidden)
    regularizer, solver = SquaredNorm(), GradientDescent(momentum=0.9)
    converted = EquilibriumAggregation(
        in_channels, layer.output_dim, potential=potential, regularizer=regularizer, solver=solver,
        steps=layer.grad_iter, scaling="mean",
    ).to(layer.lamb)  # fmt: skip
    copy_potential(layer.potential, potential)
    copy_scalar("lamb", layer.lamb, softplus, regularizer.raw_weight)
    copy_scalar("optimizer._lr", layer.optimizer._lr, softplus, solver.raw_learning_rate)
    copy_scalar("optimizer._mom", layer.optimizer._mom, torch.sigmoid, solver.raw_momentum)
    return converted.train(layer.training)


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


@torch.no_grad()
def copy_scalar(
    name: str, source: Tensor, constrain: Callable[[Tensor], Tensor], target: LearnedScalar
) -> None:
    """Set target to `constrain(source)`, in full precision."""
    value = constrain(source.to(target.origin.dtype)).reshape(())
    upper = 1.0 if constrain is torch.sigmoid else float("inf")
    if not 0 < float(value) < upper:
        raise ValueError(
            f"layer.{name} is {source.item():.4g}, and its {constrain.__name__} {value.item():.4g} "
            f"in {value.dtype}, expected more than 0 and less than {upper:g}"
        )
    target.origin.copy_(value)
    target.given = float(value)
    target.raw.requires_grad_(source.requires_grad)


def read_sizes(layer: packaged.EquilibriumAggregation) -> tuple[int, list[int]]:
    """Its `in_channels` and hidden sizes, after a check that it is PyTorch Geometric's own in all
    its parts."""
    if type(layer) is not packaged.EquilibriumAggregation:
        raise TypeError(
            f"layer is a {full_name(layer)}, expected a torch_geometric.nn.aggr."
            "EquilibriumAggregation; subclasses cannot be converted"
        )
    check_part("potential", layer.potential, packaged.ResNetPotential)
    check_part("optimizer", layer.optimizer, packaged.MomentumOptimizer)
    for i, skip in enumerate(layer.potential.res_trans):
        check_part(f"potential.res_trans.{i}", skip, nn.Linear)
    *skips, last_skip = layer.potential.res_trans
    hidden = [skip.out_features for skip in skips]
    in_channels = last_skip.in_features - layer.output_dim
    new = packaged.EquilibriumAggregation(in_channels, layer.output_dim, num_layers=hidden)
    check_structure(layer, new)
    kinds = {f"{parameter.dtype} on {parameter.device}" for parameter in layer.parameters()}
    if len(kinds) > 1:
        raise ValueError(
            f"layer has parameters of {' and '.join(sorted(kinds))}, expected one kind"
        )
    return in_channels, hidden


def check_part(name: str, part: nn.Module, expected: type[nn.Module]) -> None:
    if type(part) is not expected:
        raise ValueError(
            f"layer.{name} is a {full_name(part)}, expected a {expected.__module__}."
            f"{expected.__name__}; other parts cannot be converted"
        )


def check_structure(layer: nn.Module, reference: nn.Module) -> None:
    """Check that all modules, methods and parameters are those of a new layer of that size."""
    found, expected = dict(layer.named_modules()), dict(reference.named_modules())
    for name in expected | found:
        here, there = (describe(modules.get(name)) for modules in (found, expected))
        if here != there:
            raise ValueError(f"layer.{name} is {here}, expected {there} as in a new layer")
    for name, module in found.items():
        for method in vars(module):
            if callable(getattr(type(module), method, None)):
                path = ".".join(filter(None, ("layer", name, method)))
                raise ValueError(f"{path} was replaced, so layer cannot be converted")
    surplus = set(layer.state_dict()) ^ set(reference.state_dict())
    if surplus:
        raise ValueError(
            f"layer and a new layer differ in the parameters {sorted(surplus)}; first remove "
            "parametrizations such as weight normalisation"
        )


def describe(module: nn.Module | None) -> str:
    """A module's type, with its settings if it has no submodules."""
    if module is None:
        return "nothing"
    return full_name(module) if len(list(module.children())) else f"{full_name(module)} {module}"


def full_name(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"
