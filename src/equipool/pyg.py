"""The layer as an aggregation of PyTorch Geometric, and the way over from the one it ships."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from equipool import aggregation
from equipool.differentiation import Differentiation
from equipool.layouts import gather_sets
from equipool.potentials.base import Potential
from equipool.regularizers import Regularizer, SquaredNorm
from equipool.scalars import LearnedScalar
from equipool.scalings import ScalingName
from equipool.solution import Solution
from equipool.solvers import HeavyBall, Solver
from equipool.starts import Start

try:
    from torch_geometric import Index
    from torch_geometric.nn.aggr import Aggregation
    from torch_geometric.nn.aggr import equilibrium as packaged
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "equipool.pyg needs PyTorch Geometric: pip install 'equipool[pyg]'", name=error.name
    ) from error

__all__ = ["EquilibriumAggregation", "InputSkipPotential", "from_pyg"]


class EquilibriumAggregation(Aggregation):
    r"""`equipool.EquilibriumAggregation` with the call of a `torch_geometric.nn.aggr.Aggregation`:
    a readout, the `aggr` of a convolution, a part of a `MultiAggregation`.

    The arguments are those of `equipool.EquilibriumAggregation`, which is held as `layer`. The
    parts of that layer are read and replaced on this one too.

    Shapes:
        `x [*, N, C]` with `index [N]` in any order or `ptr [B + 1]` -> `[*, B, out_channels]`.
        The sets along further dimensions, such as attention heads, are independent of each other.
        The output of an empty set, such as the messages to a node without neighbours, is the start.

    Example:
        >>> from torch_geometric.nn import SAGEConv
        >>> readout = EquilibriumAggregation(in_channels=3, out_channels=8)
        >>> readout(torch.randn(5, 3), torch.tensor([0, 1, 0, 0, 1])).shape
        torch.Size([2, 8])
        >>> conv = SAGEConv(3, 16, aggr=EquilibriumAggregation(3, 3))
        >>> conv(torch.randn(5, 3), torch.tensor([[0, 1, 2], [1, 2, 0]])).shape
        torch.Size([5, 16])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        potential: nn.Module | None = None,
        regularizer: Regularizer | None = None,
        solver: Solver | None = None,
        differentiation: Differentiation | None = None,
        start: Start | None = None,
        num_steps: int = 10,
        scaling: ScalingName = "log",
        tolerance: float = 1e-3,
        check_finite: bool = False,
    ) -> None:
        super().__init__()
        self.layer = aggregation.EquilibriumAggregation(
            in_channels,
            out_channels,
            potential=potential,
            regularizer=regularizer,
            solver=solver,
            differentiation=differentiation,
            start=start,
            num_steps=num_steps,
            scaling=scaling,
            tolerance=tolerance,
            check_finite=check_finite,
        )

    @property
    def in_channels(self) -> int:
        return self.layer.in_channels

    @property
    def out_channels(self) -> int:
        return self.layer.out_channels

    @property
    def potential(self) -> nn.Module:
        return self.layer.potential

    @property
    def regularizer(self) -> Regularizer:
        return self.layer.regularizer

    @property
    def solver(self) -> Solver:
        return self.layer.solver

    @property
    def differentiation(self) -> Differentiation:
        return self.layer.differentiation

    @property
    def start(self) -> Start:
        return self.layer.start

    @property
    def num_steps(self) -> int:
        """Steps of the inner optimiser; train short and test long, if you like."""
        return self.layer.num_steps

    @num_steps.setter
    def num_steps(self, num_steps: int) -> None:
        self.layer.num_steps = num_steps

    def __setattr__(self, name: str, value: Any) -> None:
        # A module set on a module is filed before any property is asked, and would be read by no
        # one here.
        if isinstance(getattr(type(self), name, None), property):
            setattr(self.layer, name, value)
        else:
            super().__setattr__(name, value)

    def reset_parameters(self) -> None:
        """Draw the potential's parameters anew and return all others to where they started."""
        self.layer.reset_parameters()

    def forward(
        self,
        x: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        dim: int = -2,
        max_num_elements: int | None = None,
    ) -> Tensor:
        """Pool each set.

        Args:
            x: elements, `[*, N, C]`.
            index: the set of each element, `[N]`, in any order.
            ptr: where each set begins and ends, `[B + 1]`; where it is given, index is not read.
            dim_size: the number of sets, where some at the end may be empty.
            dim: the dimension of x that the elements lie along; the last one holds the channels.
            max_num_elements: not needed here, since nothing is padded.

        Returns:
            `[*, B, out_channels]`, with the sets in the place of the elements.
        """
        check_dim(x, dim)
        index, ptr = one_layout(index, ptr)
        if ptr is not None and dim_size == ptr.numel() - 1:
            dim_size = None  # the base class read it there: if it is wrong, then because of ptr
        if x.dim() == 2:
            return self.layer(x, index, ptr=ptr, dim_size=dim_size)
        return self._forward_each(x, index, ptr, dim_size, dim)

    def _forward_each(
        self, x: Tensor, index: Tensor | None, ptr: Tensor | None, dim_size: int | None, dim: int
    ) -> Tensor:
        """Pool over `dim`, separately along every dimension that is neither it nor the channels."""
        x = x.movedim(dim, 0)
        num_elements, *others, channels = x.shape
        rows, sets = gather_sets(x.flatten(1), index, ptr=ptr, dim_size=dim_size)
        copies = prod(others)
        copy = torch.arange(copies, device=x.device)
        y = self.layer(
            rows.reshape(num_elements * copies, channels),
            (sets.index.unsqueeze(-1) * copies + copy).flatten(),
            dim_size=sets.num_sets * copies,
        )
        return y.reshape(sets.num_sets, *others, self.out_channels).movedim(0, dim)

    def solve(
        self,
        x: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        *,
        trajectory: bool = False,
    ) -> Solution:
        """Pool each set of `x [N, C]`, and say how well that went: see the layer's `solve`.

        Example:
            >>> solution = EquilibriumAggregation(3, 8).solve(torch.randn(5, 3))
            >>> solution.residual.shape, solution.converged.dtype
            (torch.Size([1]), torch.bool)
        """
        check_two_dimensional(x)
        index, ptr = one_layout(index, ptr)
        return self.layer.solve(x, index, ptr=ptr, dim_size=dim_size, trajectory=trajectory)

    def energy(
        self,
        x: Tensor,
        y: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
    ) -> Tensor:
        """Energy of each set of `x [N, C]` at `y [B, K]`, scaled as in the search: `[B]`."""
        check_two_dimensional(x)
        index, ptr = one_layout(index, ptr)
        return self.layer.energy(x, y, index, ptr=ptr, dim_size=dim_size)

    def __repr__(self) -> str:
        return repr(self.layer)


def one_layout(index: Tensor | None, ptr: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """`ptr` alone where there is one, since a convolution over sorted edges gives both, and `index`
    as a plain tensor: half of an `EdgeIndex` takes every operation through Python."""
    if ptr is not None:
        return None, ptr
    return (index.as_tensor() if isinstance(index, Index) else index), None


def check_dim(x: Tensor, dim: int) -> None:
    if x.dim() < 2:
        raise ValueError(f"x has shape {list(x.shape)}, expected [*, N, C]")
    if not -x.dim() <= dim < x.dim() or dim % x.dim() == x.dim() - 1:
        raise ValueError(
            f"dim is {dim} and x has shape {list(x.shape)}, expected a dimension of x other than "
            "its last, which holds the channels"
        )


def check_two_dimensional(x: Tensor) -> None:
    if x.dim() != 2:
        raise ValueError(f"x has shape {list(x.shape)}, expected [N, C]")


class InputSkipPotential(Potential):
    r"""The potential of PyTorch Geometric's own layer, $F(x, y) = h_L$, a single number of any
    sign, with

    $$z = [x; y], \quad h_0 = z, \quad
      h_l = S_l z + \tanh(\mathrm{LN}(W_l h_{l-1} + b_l)), \quad
      h_L = S_L z + W_L h_{L-1} + c.$$

    Every skip $S_l$ is an affine map of the input, where the paper's takes the previous layer, and
    the output is not squared: no choice of weights makes it a `ResNetPotential`. What is constant
    in y has no influence on its minimum, and would be a parameter without gradient: $S_{L-1}$ and
    $S_L$ have no bias, and $c$ is a buffer.

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
    with an `InputSkipPotential`, its solver heavy-ball with step size $\mathrm{softplus}$ of
    `_lr` and momentum $\mathrm{sigmoid}$ of `_mom`. These are learned here as they are there: the
    gradients agree as well.

    What differs is meant to: in a batch of $B$ sets PyTorch Geometric divides the regularizer by
    $B$, so that the output of a set depends on how many others came with it. Here every set is
    given what that layer gives it alone.

    Raises:
        TypeError: layer is something else, a subclass included.
        ValueError: a part of layer is not PyTorch Geometric's own, so that what it computes is not
            known, or a number has no equivalent; the message names it.

    Example:
        >>> from torch_geometric.nn import aggr
        >>> theirs = aggr.EquilibriumAggregation(3, 8, num_layers=[16, 16])
        >>> ours = from_pyg(theirs)
        >>> x = torch.randn(5, 3)
        >>> bool(torch.allclose(ours(x), theirs(x), atol=1e-5))
        True
    """
    check_packaged(layer)
    *skips, last_skip = layer.potential.res_trans
    in_channels = last_skip.in_features - layer.output_dim
    hidden = [skip.out_features for skip in skips]
    potential = InputSkipPotential(in_channels, layer.output_dim, hidden)
    regularizer, solver = SquaredNorm(), HeavyBall()
    converted = EquilibriumAggregation(
        in_channels,
        layer.output_dim,
        potential=potential,
        regularizer=regularizer,
        solver=solver,
        num_steps=layer.grad_iter,
        scaling="mean",
    ).to(layer.lamb)
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
    """Fill the parameters that target has; those that are frozen stay so."""
    for name, parameter in target.named_parameters():
        parameter.copy_(source.get_parameter(name))
        parameter.requires_grad_(source.get_parameter(name).requires_grad)


@torch.no_grad()
def copy_scalar(
    name: str, source: Tensor, constrain: Callable[[Tensor], Tensor], target: LearnedScalar
) -> None:
    """Let target be `constrain(source)`, without the rounding of a constructor's argument."""
    value = constrain(source.to(target.origin.dtype)).reshape(())
    upper = 1.0 if constrain is torch.sigmoid else float("inf")
    if not 0 < float(value) < upper:
        raise ValueError(
            f"layer.{name} is {source.item():.4g}, and its {constrain.__name__} {value.item():.4g} "
            f"in {value.dtype}, expected more than 0 and less than {upper:g}"
        )
    target.origin.copy_(value)
    cast(nn.Parameter, target.raw).requires_grad_(source.requires_grad)


def check_packaged(layer: packaged.EquilibriumAggregation) -> None:
    """Check that the layer is PyTorch Geometric's own in all its parts."""
    if type(layer) is not packaged.EquilibriumAggregation:
        raise TypeError(
            f"layer is a {full_name(layer)}, expected a torch_geometric.nn.aggr."
            "EquilibriumAggregation, and no subclass: what that computes is not known here"
        )
    check_part("potential", layer.potential, packaged.ResNetPotential)
    check_part("optimizer", layer.optimizer, packaged.MomentumOptimizer)
    for i, skip in enumerate(layer.potential.res_trans):
        check_part(f"potential.res_trans.{i}", skip, nn.Linear)
    *skips, last_skip = layer.potential.res_trans
    check_structure(
        layer,
        packaged.EquilibriumAggregation(
            last_skip.in_features - layer.output_dim,
            layer.output_dim,
            num_layers=[skip.out_features for skip in skips],
        ),
    )
    kinds = {f"{parameter.dtype} on {parameter.device}" for parameter in layer.parameters()}
    if len(kinds) > 1:
        raise ValueError(
            f"layer has parameters of {' and '.join(sorted(kinds))}, expected one kind"
        )


def check_part(name: str, part: nn.Module, expected: type[nn.Module]) -> None:
    if type(part) is not expected:
        raise ValueError(
            f"layer.{name} is a {full_name(part)}, expected a {expected.__module__}."
            f"{expected.__name__}: what another computes is not known here"
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
                raise ValueError(f"{path} was replaced: what it computes now is not known here")
    surplus = set(layer.state_dict()) ^ set(reference.state_dict())
    if surplus:
        raise ValueError(
            f"layer and a new layer differ in the parameters {sorted(surplus)}, expected the same "
            "ones: undo what was done to the weights, such as a weight normalisation"
        )


def describe(module: nn.Module | None) -> str:
    """A module's type, and its settings where it is not made of others."""
    if module is None:
        return "nothing"
    return full_name(module) if len(list(module.children())) else f"{full_name(module)} {module}"


def full_name(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"
