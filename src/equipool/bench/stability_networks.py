"""Networks of many seeds trained as one: every parameter has a row for each seed, and no seed's
numbers meet another's."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from equipool import EquilibriumAggregation, LearnedStart
from equipool.descent import Search
from equipool.energy import Energy
from equipool.ops.resnet_gradient import Folded, fold
from equipool.potentials import ResNetPotential
from equipool.potentials.base import SummedPotential
from equipool.regularizers import SquaredNorm
from equipool.scalars import LearnedScalar
from equipool.scalings import scaling_weights
from equipool.steps import Budget

HEAD_WIDTH = 32
EPSILON = 1e-5  # of the normalisations
SCALARS = ("raw_learning_rate", "raw_momentum")  # of the solver


class SetRegressor(nn.Module):
    """One network: a layer and two linear layers behind it, `[B, N, 1] -> [B]`."""

    def __init__(self, layer: EquilibriumAggregation) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Sequential(
            nn.Linear(layer.out_channels, HEAD_WIDTH), nn.ReLU(), nn.Linear(HEAD_WIDTH, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)).squeeze(-1)


class Network(NamedTuple):
    """The hidden layers of the stacked potentials, for the gradient."""

    x_part: Tensor  # [S, B * N, H] what x gives to all pre-activations
    from_y: Tensor  # [S, H, K]
    from_hidden: tuple[Tensor, ...]
    gammas: tuple[Tensor, ...]  # [S, 1, size] each
    betas: tuple[Tensor, ...]


Gradient = Callable[[Network, tuple[int, ...], Tensor], Tensor]


def summed_gradient(network: Network, sizes: tuple[int, ...], y: Tensor) -> Tensor:
    """The derivative by y of the potential, summed over sets of equal size:
    `[S, B, K] -> [S, B, K]`."""
    seeds, sets = y.shape[:2]
    by_set = network.x_part.unflatten(1, (sets, -1)) + (y @ network.from_y.mT).unsqueeze(2)
    us = list(by_set.flatten(1, 2).split(sizes, dim=-1))
    ends = list(accumulate(sizes))
    last = len(sizes) - 1
    layers = []
    for j in range(last):
        centered = us[j] - us[j].mean(-1, keepdim=True)
        rstd = torch.rsqrt(centered.square().mean(-1, keepdim=True) + EPSILON)
        normal = centered * rstd
        h = torch.tanh(normal * network.gammas[j] + network.betas[j])
        layers.append((normal, rstd, h))
        for i in range(j + 1, last + 1):
            rows = slice(ends[i - 1] - ends[j], ends[i] - ends[j])
            us[i] = us[i] + h @ network.from_hidden[j][:, rows].mT
    deltas = [us[last] * (2 / sizes[last])]
    for j in reversed(range(last)):
        normal, rstd, h = layers[j]
        by_h = torch.cat(deltas, -1) @ network.from_hidden[j]
        by_normal = by_h * (1 - h * h) * network.gammas[j]
        along = (by_normal * normal).mean(-1, keepdim=True)
        deltas.insert(0, rstd * (by_normal - by_normal.mean(-1, keepdim=True) - normal * along))
    summed = torch.cat(deltas, -1).view(seeds, sets, -1, ends[last]).sum(2)
    return summed @ network.from_y


@cache
def compiled_gradient() -> Gradient:
    """The same as one compiled program: twice as fast, once a C++ compiler has run."""
    return torch.compile(summed_gradient, fullgraph=True, dynamic=False)


class StackedSum(SummedPotential):
    """The seeds' potentials summed over their sets, `y [S * B, K]`, a seed's sets side by side."""

    def __init__(self, network: Network, sizes: tuple[int, ...], gradient: Gradient) -> None:
        self.network = network
        self.sizes = sizes
        self._gradient = gradient

    def value(self, y: Tensor) -> Tensor:
        raise TypeError("the stacked potentials have a gradient alone")

    def gradient(self, y: Tensor) -> Tensor:
        rows = y.unflatten(0, (self.network.x_part.shape[0], -1))
        return self._gradient(self.network, self.sizes, rows).flatten(0, 1)

    def restrict(self, rows: Tensor) -> SummedPotential:
        raise TypeError("the stacked potentials go all the way together")


class StackedScalar(nn.Module):
    """A learned number for each seed, given to each of its sets: `[S * B, 1]`."""

    def __init__(self, scalar: LearnedScalar, num_seeds: int, num_sets: int) -> None:
        super().__init__()
        scalar.raw = nn.Parameter(torch.zeros(num_seeds))
        self.scalar = scalar
        self.num_sets = num_sets

    def forward(self) -> Tensor:
        return self.scalar().repeat_interleave(self.num_sets).unsqueeze(-1)


class Stack(nn.Module):
    """The parameters of like modules, stacked."""

    def __init__(self, modules: list[Any]) -> None:
        super().__init__()
        stacked, _ = stack_module_state(modules)
        self.names = tuple(stacked)
        self.values = nn.ParameterList(nn.Parameter(stacked[name].detach()) for name in self.names)

    def parameters_by_name(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self.values, strict=True))


class StackedRegressors(nn.Module):
    """`SetRegressor`s whose layers differ in their parameters alone: `[S, B, N, 1] -> [S, B]`.

    Every parameter has a first dimension of S. The number of sets B is the same at every call.

    Args:
        networks: the networks at their start.
        num_sets: B.
        gradient: `summed_gradient`, or the same compiled.
        max_y_weight: the potential's first matrices read a component of y through a column that is
            no longer than this; None to leave them as they are.
    """

    def __init__(
        self,
        networks: list[SetRegressor],
        num_sets: int,
        gradient: Gradient = summed_gradient,
        max_y_weight: float | None = None,
    ) -> None:
        super().__init__()
        layer = networks[0].layer
        assert isinstance(layer.potential, ResNetPotential)
        assert isinstance(layer.regularizer, SquaredNorm)
        self.num_steps = layer.num_steps
        self.sizes = layer.potential.hidden
        self.gradient = gradient
        self.max_y_weight = max_y_weight
        self.potentials = Stack([network.layer.potential for network in networks])
        self.heads = Stack([network.head for network in networks])
        self.solver, self.regularizer = layer.solver, layer.regularizer
        owners = dict.fromkeys(SCALARS, self.solver) | {"raw_weight": self.regularizer}
        for name, owner in owners.items():
            stacked = StackedScalar(getattr(owner, name), len(networks), num_sets)
            owner.register_module(name, stacked)
        start = layer.start.y if isinstance(layer.start, LearnedStart) else None
        shape = (len(networks), layer.out_channels)
        self.start = (
            nn.Parameter(start.detach().repeat(shape[0], 1))
            if start is not None
            else nn.Buffer(torch.zeros(shape))
        )
        # The template is not to be registered: its parameters are stacked already.
        self._head = [networks[0].head]

    def forward(self, x: Tensor) -> Tensor:
        return self.predict(self.pool(x))

    def pool(self, x: Tensor) -> Tensor:
        """The layers' outputs, `[S, B, N, 1] -> [S, B, K]`."""
        counts = torch.full((x.shape[0] * x.shape[1],), x.shape[2])
        weights = scaling_weights("log", counts, x.dtype)
        summed = StackedSum(self._network(x), self.sizes, self.gradient)
        start = self.start.repeat_interleave(x.shape[1], 0)
        energy = Energy(summed, self.regularizer, weights)
        budget = Budget(self.num_steps)
        y = Search(self.solver, energy, start, budget, keep_squared_gradient=False).solve().y
        return y.unflatten(0, x.shape[:2])

    def predict(self, y: Tensor) -> Tensor:
        """What the heads read off, `[S, B, K] -> [S, B]`."""
        (head,) = self._head
        read = vmap(lambda parameters, y: functional_call(head, parameters, (y,)))
        return read(self.heads.parameters_by_name(), y).squeeze(-1)

    def scalar_parameters(self) -> list[nn.Parameter]:
        """Step size and momentum."""
        return list(self.solver.parameters())

    def learned_scalars(self) -> dict[str, Tensor]:
        """Their values, `[S]` each."""
        scalars = {name: self.solver.get_submodule(f"{name}.scalar") for name in SCALARS}
        return {name: scalar().detach() for name, scalar in scalars.items()}

    def _network(self, x: Tensor) -> Network:
        parameters = self.potentials.parameters_by_name()
        folded = vmap(self._fold)(parameters)
        x_part = x.flatten(1, 2) @ folded.from_x.mT + folded.constant.unsqueeze(1)
        from_y = folded.from_y
        if self.max_y_weight is not None:
            from_y = from_y * self._shrink(parameters)
        hidden = range(len(self.sizes) - 1)
        return Network(
            x_part,
            from_y,
            folded.from_hidden,
            tuple(parameters[f"norms.{j}.weight"].unsqueeze(1) for j in hidden),
            tuple(parameters[f"norms.{j}.bias"].unsqueeze(1) for j in hidden),
        )

    def _fold(self, parameters: dict[str, Tensor]) -> Folded:
        def affine(name: str) -> tuple[Tensor, Tensor]:
            return parameters[f"{name}.weight"], parameters[f"{name}.bias"]

        layers = range(len(self.sizes))
        skips = [affine(f"skips.{j}") if f"skips.{j}.weight" in parameters else None
                 for j in layers]  # fmt: skip
        return fold([affine(f"linears.{j}") for j in layers], skips, in_channels=1)

    def _shrink(self, parameters: dict[str, Tensor]) -> Tensor:
        """`[S, 1, K]`. y is read by the first layer and its skip alone, so that this shortens
        every path from it."""
        assert self.max_y_weight is not None
        readers = [parameters["linears.0.weight"], parameters["skips.0.weight"]]
        columns = torch.cat(readers, dim=1)[..., 1:]
        lengths = torch.linalg.vector_norm(columns, dim=1, keepdim=True)
        return self.max_y_weight / lengths.clamp(min=self.max_y_weight)
