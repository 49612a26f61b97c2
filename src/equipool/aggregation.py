"""The layer."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from itertools import chain, product
from typing import Any, SupportsIndex, cast

import torch
from torch import Tensor, nn

from equipool.checks import as_count, check_part
from equipool.config import config_of, differences
from equipool.descent import Descent, Differentiation, Keep, Search, Unrolled
from equipool.distributed import (
    ShardedSum,
    of_first_process,
    open_blocks,
    over_processes,
    with_mean_derivative,
)
from equipool.energy import SCALINGS, Energy, RowEnergy, ScalingName, scaling_weights
from equipool.objective import Objective
from equipool.ops.execution import (
    announce_compilation,
    graphs_serve,
    normal,
    outside_inference_mode,
)
from equipool.potentials.base import Potential, sum_over
from equipool.potentials.resnet import ResNetPotential
from equipool.regularizers import Regularizer, as_regularizer
from equipool.replay import Program, Replays
from equipool.sets import FLOATS, Sets, check_like, empty_invalid_sets, gather_sets
from equipool.solution import Solution, make_solution, recorders
from equipool.solvers import Exact, Nesterov, Solver
from equipool.starts import Start, ZeroStart
from equipool.steps import Budget, FixedSteps, Steps, as_steps


class EquilibriumAggregation(nn.Module):
    r"""Pools a set by minimising a learned energy, as in [Equilibrium Aggregation: Encoding Sets
    via Optimization](https://arxiv.org/abs/2202.12795):

    $$y(X) = \arg\min_y \; R(y) + \sum_{x \in X} F(x, y).$$

    The output of a set depends on the set alone: not on its order, on the other sets of the batch
    or on the layout.

    Args:
        in_channels: size of an element.
        out_channels: size of a set's output.
        potential: $F$, any module that maps `x [N, C]` and the set's output for each element,
            `y [N, K]`, to `[N]`. Default: the paper's `ResNetPotential`.
        regularizer: $R$: a `Regularizer`, or the initial weight of a `SquaredNorm`; 0 is none.
            Default: the potential's own, `SquaredNorm(0.1)`.
        solver: the inner optimiser. Default: `Nesterov()`, or `Exact()` if the potential knows its
            minimum.
        differentiation: how gradients pass through the search. Default: `Unrolled()`.
        start: where the search begins. Default: the zero vector.
        steps: how long to search: a number of steps, `FixedSteps(num_steps, tolerance)`,
            `RandomSteps(min_steps, max_steps)` or `ToTolerance(tolerance, max_steps)`. Default: 10
            steps, with the solver `Exact` 80 passes.
        scaling: how the energy grows with the number of elements: `"log"` as in the paper,
            `"log-mean"` the same for the potential alone, `"sum"` without scaling, `"mean"`
            independent of that number.
        check_finite: raise an error if `x` has a non-finite value. On a GPU this waits for
            the device.
        cuda_graphs: on a GPU, record the solve and its backward pass as CUDA graphs on the second
            call and replay them from then on, for batches of any size. Results are the same.
        device: where the parameters are, those of given parts too.
        dtype: their precision.

    Shapes:
        `x [N, C]` with `index [N]` or `ptr [B + 1]`, `x [B, L, C]` with `mask [B, L]`, a jagged
        nested tensor `x [B, j, C]`, or one set `x [N, C]` -> `[B, out_channels]`. With each,
        `weight`, in the shape of x without channels.

    Example:
        >>> layer = EquilibriumAggregation(in_channels=3, out_channels=8)
        >>> x, index = torch.randn(5, 3), torch.tensor([0, 1, 0, 0, 1])
        >>> layer(x, index).shape
        torch.Size([2, 8])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        potential: nn.Module | None = None,
        regularizer: Regularizer | float | None = None,
        solver: Solver[Any] | None = None,
        differentiation: Differentiation | None = None,
        start: Start | None = None,
        steps: Steps | int | None = None,
        scaling: ScalingName = "log",
        check_finite: bool = False,
        cuda_graphs: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = in_channels = as_count("in_channels", in_channels, least=1)
        self.out_channels = out_channels = as_count("out_channels", out_channels, least=1)
        self.potential = (
            potential if potential is not None else ResNetPotential(in_channels, out_channels)
        )
        if regularizer is None:  # the potential's own
            regularizer = getattr(
                self.potential, "regularizer_weight", Potential.regularizer_weight
            )
        self.regularizer = as_regularizer(regularizer)
        if solver is None:
            solver = Exact() if getattr(self.potential, "exact", False) else Nesterov()
        self.solver = solver
        self.differentiation = differentiation if differentiation is not None else Unrolled()
        self.start = start if start is not None else ZeroStart(out_channels)
        self.scaling = scaling
        self.check_finite = check_finite
        self.cuda_graphs = cuda_graphs
        self._replays = Replays()
        self._check_parts()
        self.steps = FixedSteps(self.solver.num_steps) if steps is None else as_steps(steps)
        if device is not None or dtype is not None:
            self.to(device=device, dtype=dtype)

    @property
    def steps(self) -> Steps:
        """How long to search. Assign a number of steps, `FixedSteps(...)`, `RandomSteps(...)` or
        `ToTolerance(...)`."""
        return self._steps

    @steps.setter
    def steps(self, steps: Steps | int) -> None:
        self._steps = as_steps(steps)

    @property
    def scaling(self) -> ScalingName:
        """How the energy grows with the number of elements."""
        return self._scaling

    @scaling.setter
    def scaling(self, scaling: ScalingName) -> None:
        if scaling not in SCALINGS:
            raise ValueError(f"scaling is {scaling!r}, expected one of {sorted(SCALINGS)}")
        self._scaling = scaling

    def config(self) -> dict[str, Any]:
        """The layer's settings and those of its parts as plain data. They are part of the
        `state_dict`; loading it into a layer with other settings gives one warning that names
        them.

        Example:
            >>> EquilibriumAggregation(3, 8, steps=20).config()["steps"]
            {'class': 'FixedSteps', 'num_steps': 20, 'tolerance': 0.001}
        """
        return config_of(self)

    def get_extra_state(self) -> Tensor:
        """Settings, and the place in the sequence of `RandomSteps`, as JSON in `uint8`."""
        # As `uint8`, which `torch.load(weights_only=True)` and safetensors can read.
        state = json.dumps({"config": self.config(), "drawn": self.steps.drawn})
        return torch.frombuffer(bytearray(state.encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        if state.dtype != torch.uint8:  # an average of several states, say
            return
        found = json.loads(bytes(state.cpu().tolist()))
        object.__setattr__(self.steps, "drawn", found["drawn"])
        if different := list(differences(self.config(), found["config"])):
            warnings.warn(
                "the weights come from a layer with other settings, so outputs will differ: "
                f"{'; '.join(different)}. Build the layer with the settings of the saved one",
                stacklevel=4,
            )

    def reset_parameters(self) -> None:
        """Draw the potential's parameters again and reset all others to their initial values."""
        for part in (self.potential, self.regularizer, self.solver, self.start):
            for module in [part] if hasattr(part, "reset_parameters") else part.modules():
                if hasattr(module, "reset_parameters"):
                    cast(Callable[[], None], module.reset_parameters)()

    def forward(
        self,
        x: Tensor,
        index: Tensor | Sets | None = None,
        *,
        ptr: Tensor | None = None,
        mask: Tensor | None = None,
        dim_size: SupportsIndex | None = None,
        weight: Tensor | None = None,
    ) -> Tensor:
        """Pool each set.

        Args:
            x: elements, `[N, C]`, or padded `[B, L, C]`, or a jagged nested tensor.
            index: the set of each element, `[N]`, in any order; or `Sets`, if x is in their order.
            ptr: instead of index, where each set begins and ends, `[B + 1]`.
            mask: True for real elements: `[B, L]` with a padded x, `[N]` with a flat one.
            dim_size: the number of sets. Needed if sets at the end may be empty.
            weight: weights of the elements, 0 or more, in the shape of x without channels; nested
                if x is. Weight 2 is the same as two copies, weight 0 as none. Default: 1 for all.

        Returns:
            `[B, out_channels]`. The output of an empty set is the start.
        """
        with outside_inference_mode():
            layout = {"ptr": ptr, "mask": mask, "dim_size": dim_size, "weight": weight}
            x, sets = self._gather(x, index, **layout)
            budget, keep = self.steps.budget(self.training), Keep(bool(recorders.active))
            descent, energy = self._descend(x, sets, budget, keep)
            for recorder in recorders.active:
                diagnosed = None
                if recorder.diagnostics:
                    diagnosed = energy = energy or self._bind(x, sets)
                recorder.append(make_solution(x, sets, budget, descent, diagnosed))
            return sets.real(sets.mark(descent.y)).to(x.dtype)

    def solve(
        self,
        x: Tensor,
        index: Tensor | Sets | None = None,
        *,
        ptr: Tensor | None = None,
        mask: Tensor | None = None,
        dim_size: SupportsIndex | None = None,
        weight: Tensor | None = None,
        start: Tensor | None = None,
        steps: Steps | int | None = None,
        trajectory: bool = False,
    ) -> Solution:
        """Pool each set and report how the search went. Takes the arguments of `forward`.

        Args:
            start: where to begin, `[B, out_channels]`, such as the outputs of an earlier solve.
                A set whose row is non-finite begins at the layer's own start. Default: all do.
            steps: how long to search in this call. Default: the layer's `steps`.
            trajectory: whether to keep y from the start to the end of the search.

        Example:
            >>> layer, x = EquilibriumAggregation(3, 8), torch.randn(5, 3)
            >>> solution = layer.solve(x)
            >>> solution.residual.shape, solution.converged.dtype
            (torch.Size([1]), torch.bool)
            >>> further = layer.solve(x, start=solution.y, steps=20)
            >>> bool(further.energy <= solution.energy)
            True
        """
        with outside_inference_mode():
            layout = {"ptr": ptr, "mask": mask, "dim_size": dim_size, "weight": weight}
            x, sets = self._gather(x, index, **layout)
            steps = self.steps if steps is None else as_steps(steps)
            budget = steps.budget(self.training)
            descent, energy = self._descend(x, sets, budget, Keep(path=trajectory), start)
            return make_solution(x, sets, budget, descent, energy or self._bind(x, sets))

    def energy(
        self,
        x: Tensor,
        index: Tensor | Sets | None = None,
        *,
        ptr: Tensor | None = None,
        mask: Tensor | None = None,
        dim_size: SupportsIndex | None = None,
        weight: Tensor | None = None,
    ) -> Energy:
        """The energy of each set that the layer minimises, a function of y: `E(y)`,
        `E.gradient(y)`, `E.hessian(y)`. Takes the arguments of `forward`.

        Nothing is drawn at random, unless the potential drops units: then every call of this method
        draws other units, which `E` keeps.

        Example:
            >>> layer, x = EquilibriumAggregation(3, 8), torch.randn(5, 3)
            >>> energy = layer.energy(x)
            >>> bool(energy(layer(x)) < energy(torch.zeros(1, 8)))
            True
        """
        with outside_inference_mode():
            layout = {"ptr": ptr, "mask": mask, "dim_size": dim_size, "weight": weight}
            x, sets = self._gather(x, index, **layout)
            return Energy(self._bind(x, sets), x, sets, self.out_channels)

    def _gather(self, x: Tensor, index: Tensor | Sets | None, **layout: Any) -> tuple[Tensor, Sets]:
        """The elements `[N, C]` in set order, and the sets."""
        x, sets = gather_sets(x, index, **layout)
        self._check_fits(x)
        x, sets = empty_invalid_sets(normal(x), sets)
        return x, over_processes(self, x, sets) if open_blocks else sets

    def _descend(
        self, x: Tensor, sets: Sets, budget: Budget, keep: Keep, start: Tensor | None = None
    ) -> tuple[Descent, Objective | None]:
        """Search, by a recorded graph if one serves. Returns the energy unless it did."""
        ordinary = start is None and not keep.path and sets.group is None and sets.weight is None
        if self.cuda_graphs and ordinary and graphs_serve(x) and self._is_replayable():
            descent = self._replays.solve(self._program(budget, keep), x, sets)
            if descent is not None:
                return descent, None
        if torch.compiler.is_compiling():
            # A number that changes from call to call is a constant to the compiler only in a range.
            announce_compilation(len(range(budget.num_steps)))
        search = self._search(x, sets, budget, keep, start)
        descent = self.differentiation(search)
        if sets.group is not None:
            descent = descent.at(with_mean_derivative(descent.y, sets.group))
        return descent, search.objective

    def _program(self, budget: Budget, keep: Keep) -> Program:
        """The solve as it is recorded, for a layer like this one whose tensors are others."""

        def search(layer: nn.Module, x: Tensor, sets: Sets) -> Search:
            assert isinstance(layer, EquilibriumAggregation)
            return layer._search(x, sets, budget, keep)

        return Program(search, self.differentiation, self, budget, (self.scaling, keep))

    def _is_replayable(self) -> bool:
        """Whether the search is the same program for every batch: the parts know of themselves."""
        backward = self.differentiation.capturable or not torch.is_grad_enabled()
        parts = self.start.capturable and self.solver.capturable
        return backward and parts

    def _bind(self, x: Tensor, sets: Sets) -> RowEnergy:
        """The energy of each row, over elements in set order."""
        summed = sum_over(self.potential, x, sets)
        if sets.group is not None:
            summed = ShardedSum(summed, sets.group)
        weights = scaling_weights(self.scaling, sets.totals, _dtype_of_outputs(x))
        return RowEnergy(summed, self.regularizer, weights)

    def _start_rows(self, x: Tensor, sets: Sets, given: Tensor | None = None) -> Tensor:
        """Where the search begins, `[num_rows, K]`; the layer's own start where none is given."""
        own = self.start(x, sets)
        if sets.group is not None and not self.start.capturable:  # random
            own = of_first_process(own, sets.group)
        own = own.to(_dtype_of_outputs(x))
        if given is None:
            return own
        check_like("start", given, x, (sets.num_sets, self.out_channels), FLOATS)
        rows = sets.padded_rows(normal(given).to(own.dtype))
        return torch.where(torch.isfinite(rows).all(-1, keepdim=True), rows, own)

    def _search(
        self, x: Tensor, sets: Sets, budget: Budget, keep: Keep, start: Tensor | None = None
    ) -> Search:
        """The search for the minimum of each set, before its first step."""
        energy, rows = self._bind(x, sets), self._start_rows(x, sets, start)
        return Search(self.solver, energy, rows, budget, keep)

    def _check_parts(self) -> None:
        check_part("potential", self.potential, nn.Module, "ResNetPotential(in, out)")
        check_part("solver", self.solver, Solver, "Nesterov()")
        check_part("differentiation", self.differentiation, Differentiation, "Unrolled()")
        if self.solver.in_one_step and type(self.differentiation) is not Unrolled:
            raise ValueError(
                f"the differentiation is {self.differentiation!r}, expected Unrolled() with the "
                "solver Exact, which has a gradient of its own"
            )
        check_part("start", self.start, Start, f"ZeroStart({self.out_channels})")
        for part, name in product(("potential", "start"), ("in_channels", "out_channels")):
            found, expected = getattr(getattr(self, part), name, None), getattr(self, name)
            if found is not None and found != expected:
                raise ValueError(f"the {part}'s {name} is {found}, expected {expected}")

    def _check_fits(self, x: Tensor) -> None:
        """Raise an error unless elements `x [N, C]` have the layer's width, dtype and device."""
        if x.shape[-1] != self.in_channels:
            raise ValueError(
                f"x has {x.shape[-1]} channels, expected in_channels = {self.in_channels}"
            )
        tensors = chain(self.parameters(), self.buffers())
        own = next((tensor for tensor in tensors if tensor.is_floating_point()), None)
        if own is not None and own.device != x.device:
            raise ValueError(
                f"x is on {x.device} and the layer on {own.device}, expected one device"
            )
        # Fixed scalars and starts take any dtype.
        learned = (one for one in self.parameters() if one.requires_grad)
        parameter = next(chain(self.potential.parameters(), learned), None)
        # Autocast converts between shorter dtypes, but never from or to float64.
        if parameter is not None and parameter.dtype != x.dtype and not (
            torch.float64 not in (x.dtype, parameter.dtype)
            and torch.is_autocast_enabled(x.device.type)
        ):  # fmt: skip
            raise TypeError(
                f"x has dtype {x.dtype}, expected {parameter.dtype}, that of the layer's "
                "parameters: convert one of them, or use torch.autocast"
            )
        if self.check_finite and not bool(torch.isfinite(x).all()):
            raise ValueError("x has non-finite values, expected finite ones")

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, steps={self.steps!r}, "
            f"scaling={self.scaling!r}, differentiation={self.differentiation!r}"
        )


def _dtype_of_outputs(x: Tensor) -> torch.dtype:
    """float32 at least: the steps of y are small beside it, and sums are long."""
    return torch.promote_types(x.dtype, torch.float32)
