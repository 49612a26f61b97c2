"""The layer."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, product
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from equipool.checks import FLOATS, check_like
from equipool.descent import Budget, Descent, Wanted
from equipool.differentiation import Differentiation, Unrolled
from equipool.differentiation.last_steps import LastSteps
from equipool.energy import Energy
from equipool.layouts import gather_sets
from equipool.objective import Bounds
from equipool.potentials.base import AutogradSum, Potential
from equipool.potentials.resnet import ResNetPotential
from equipool.regularizers import Regularizer, SquaredNorm
from equipool.replay import Replays, graphs_serve
from equipool.scalings import SCALINGS, ScalingName, scaling_weights
from equipool.sets import Sets
from equipool.solution import Solution, active_recorders
from equipool.solvers import Nesterov, Solver
from equipool.starts import Start, ZeroStart

# Units of rounding, beside the largest curvature, that a gradient may be off by.
ROUNDINGS = 16


class Problem(NamedTuple):
    """The minimisation that a batch poses."""

    x: Tensor  # [N, C] in set order
    sets: Sets
    energy: Energy
    start: Tensor  # [num_rows, K]


class EquilibriumAggregation(nn.Module):
    r"""Pools a set by minimising a learned energy, as in [Equilibrium Aggregation: Encoding Sets
    via Optimization](https://arxiv.org/abs/2202.12795):

    $$y(X) = \arg\min_y \; R(y) + \sum_{x \in X} F(x, y).$$

    The output of a set depends on the set alone: not on its order, not on the batch around it,
    not on the layout it came in.

    Args:
        in_channels: size of an element.
        out_channels: size of a set's output.
        potential: $F$, any module that maps `x [N, C]` and the set's output for each element,
            `y [N, K]`, to `[N]`. Default: the paper's `ResNetPotential`.
        regularizer: $R$. Default: `SquaredNorm(0.1)`.
        solver: the inner optimiser. Default: `Nesterov()`.
        differentiation: how gradients pass through the solve. Default: `Unrolled()`.
        start: where the search begins. Default: the zero vector.
        num_steps: steps of the inner optimiser. May be changed at any time.
        scaling: how the energy grows with the number of elements: `"log"` as in the paper,
            `"sum"` not scaled at all, `"mean"` blind to it.
        max_steps: instead of taking `num_steps`, solve each set to the tolerance in at most so
            many. A set that reaches it stops, and without a graph to be kept costs no more.
        tolerance: a set has converged when no component of its gradient exceeds this.
        check_finite: raise an error where `x` has a value that is not finite. On a GPU this waits
            for the device.

    Shapes:
        `x [N, C]` with `index [N]` or `ptr [B + 1]`, `x [B, L, C]` with `mask [B, L]`, a jagged
        nested tensor `x [B, j, C]`, or one set `x [N, C]` -> `[B, out_channels]`.

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
        regularizer: Regularizer | None = None,
        solver: Solver[Any] | None = None,
        differentiation: Differentiation | None = None,
        start: Start | None = None,
        num_steps: int = 10,
        scaling: ScalingName = "log",
        max_steps: int | None = None,
        tolerance: float = 1e-3,
        check_finite: bool = False,
        cuda_graphs: bool = True,
    ) -> None:
        super().__init__()
        if min(in_channels, out_channels) < 1:
            raise ValueError(
                f"in_channels is {in_channels} and out_channels {out_channels}, expected 1 or more"
            )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.potential = (
            potential if potential is not None else ResNetPotential(in_channels, out_channels)
        )
        self.regularizer = regularizer if regularizer is not None else SquaredNorm()
        self.solver = solver if solver is not None else Nesterov()
        self.differentiation = differentiation if differentiation is not None else Unrolled()
        self.start = start if start is not None else ZeroStart(out_channels)
        self.num_steps = num_steps
        self.scaling = scaling
        self.max_steps = max_steps
        self.tolerance = tolerance
        self.check_finite = check_finite
        self.cuda_graphs = cuda_graphs
        self._replays = Replays()
        self._check_sizes()

    @property
    def num_steps(self) -> int:
        """Steps of the inner optimiser; train short and test long, if you like."""
        return self._num_steps

    @num_steps.setter
    def num_steps(self, num_steps: int) -> None:
        _check_steps("num_steps", num_steps)
        self._num_steps = num_steps

    @property
    def max_steps(self) -> int | None:
        """Steps at most where each set is solved to the tolerance; None to take `num_steps`."""
        return self._max_steps

    @max_steps.setter
    def max_steps(self, max_steps: int | None) -> None:
        if max_steps is not None:
            _check_steps("max_steps", max_steps)
        self._max_steps = max_steps

    @property
    def tolerance(self) -> float:
        """A set has converged when no component of its gradient exceeds this."""
        return self._tolerance

    @tolerance.setter
    def tolerance(self, tolerance: float) -> None:
        if not tolerance >= 0:
            raise ValueError(f"tolerance is {tolerance!r}, expected 0 or more")
        self._tolerance = tolerance

    @property
    def scaling(self) -> ScalingName:
        """How the energy grows with the number of elements."""
        return self._scaling

    @scaling.setter
    def scaling(self, scaling: ScalingName) -> None:
        if scaling not in SCALINGS:
            raise ValueError(f"scaling is {scaling!r}, expected one of {sorted(SCALINGS)}")
        self._scaling = scaling

    def reset_parameters(self) -> None:
        """Draw the potential's parameters anew and return all others to where they started."""
        for part in (self.potential, self.regularizer, self.solver, self.start):
            for module in [part] if hasattr(part, "reset_parameters") else part.modules():
                if hasattr(module, "reset_parameters"):
                    cast(Callable[[], None], module.reset_parameters)()

    def forward(
        self,
        x: Tensor,
        index: Tensor | None = None,
        *,
        ptr: Tensor | None = None,
        mask: Tensor | None = None,
        dim_size: int | None = None,
    ) -> Tensor:
        """Pool each set.

        Args:
            x: elements, `[N, C]`, or padded `[B, L, C]`, or a jagged nested tensor.
            index: the set of each element, `[N]`, in any order.
            ptr: instead of index, where each set begins and ends, `[B + 1]`.
            mask: True for real elements: `[B, L]` with a padded x, `[N]` with a flat one.
            dim_size: the number of sets, where some at the end may be empty.

        Returns:
            `[B, out_channels]`. The output of an empty set is the start.
        """
        x, sets = gather_sets(x, index, ptr=ptr, mask=mask, dim_size=dim_size)
        self._check_fits(x)
        recorders = active_recorders()
        if not recorders and self.cuda_graphs and graphs_serve(x) and self._is_replayable():
            variant = (self.num_steps, self.scaling, self.differentiation)
            rows = self._replays.solve(self, EquilibriumAggregation._rows, x, sets, variant)
            if rows is not None:
                return rows[0]
        problem = self._problem(x, sets)
        descent = self._descend(problem, Wanted(squared_gradient=bool(recorders)))
        for recorder in recorders:
            recorder.append(self._solution(problem, descent, recorder.diagnostics))
        return self._output(problem, descent.y)

    def solve(
        self,
        x: Tensor,
        index: Tensor | None = None,
        *,
        ptr: Tensor | None = None,
        mask: Tensor | None = None,
        dim_size: int | None = None,
        trajectory: bool = False,
    ) -> Solution:
        """Pool each set, and say how well that went. The arguments are those of `forward`.

        Args:
            trajectory: whether to keep y from the start to the end of the search.

        Example:
            >>> solution = EquilibriumAggregation(3, 8).solve(torch.randn(5, 3))
            >>> solution.residual.shape, solution.converged.dtype
            (torch.Size([1]), torch.bool)
        """
        problem = self._pose(x, index, ptr, mask, dim_size)
        return self._solution(problem, self._descend(problem, Wanted(trajectory=trajectory)))

    def energy(
        self,
        x: Tensor,
        y: Tensor,
        index: Tensor | None = None,
        *,
        ptr: Tensor | None = None,
        mask: Tensor | None = None,
        dim_size: int | None = None,
    ) -> Tensor:
        """Energy of each set at `y [B, K]`, scaled as in the search: `[B]`, never a batch mean."""
        problem = self._pose(x, index, ptr, mask, dim_size)
        check_like("y", y, problem.x, (problem.sets.num_sets, self.out_channels), FLOATS)
        rows = y.to(problem.start.dtype)
        if problem.sets.padded:
            rows = torch.cat([rows, rows.new_zeros(1, self.out_channels)])
        return problem.sets.real(problem.energy.value(rows))

    def _pose(
        self,
        x: Tensor,
        index: Tensor | None,
        ptr: Tensor | None,
        mask: Tensor | None,
        dim_size: int | None,
    ) -> Problem:
        x, sets = gather_sets(x, index, ptr=ptr, mask=mask, dim_size=dim_size)
        self._check_fits(x)
        return self._problem(x, sets)

    def _rows(self, x: Tensor, sets: Sets) -> tuple[Tensor, ...]:
        problem = self._problem(x, sets)
        return (self._descend(problem, Wanted(squared_gradient=False)).y.to(x.dtype),)

    def _is_replayable(self) -> bool:
        return (
            not (self.training and getattr(self.potential, "dropout", 0) > 0)
            and self.max_steps is None
            and isinstance(self.differentiation, Unrolled | LastSteps)
        )

    def _problem(self, x: Tensor, sets: Sets) -> Problem:
        # y lives in float32 at least: its steps are small beside it, and sums are long.
        dtype = torch.promote_types(x.dtype, torch.float32)
        summed = (
            self.potential.over(x, sets)
            if isinstance(self.potential, Potential)
            else AutogradSum(self.potential, x, sets)
        )
        energy = Energy(summed, self.regularizer, scaling_weights(self.scaling, sets.counts, dtype))
        return Problem(x, sets, energy, self.start(x, sets).to(dtype))

    def _descend(self, problem: Problem, wanted: Wanted) -> Descent:
        return self.differentiation(
            self.solver, problem.energy, problem.start, self._budget(), wanted
        )

    def _budget(self) -> Budget:
        if self.max_steps is None:
            return Budget(self.num_steps, converged_at=self.tolerance)
        return Budget(self.max_steps, self.tolerance, self.tolerance)

    def _output(self, problem: Problem, y: Tensor) -> Tensor:
        return problem.sets.real(y).to(problem.x.dtype)

    def _solution(self, problem: Problem, descent: Descent, diagnostics: bool = True) -> Solution:
        x, sets, energy, _ = problem
        energies = residual = converged = error_bound = None
        with torch.no_grad():
            broken = sets.sum((~torch.isfinite(x)).any(-1).to(descent.y.dtype)) > 0
            finite = sets.real(~broken & torch.isfinite(descent.y).all(-1))
            if diagnostics:
                gradient = energy.gradient(descent.y.detach())
                residual = sets.real(gradient.abs().amax(-1))
                converged = finite & (residual <= self.tolerance)
                if not _products_are_short(x):
                    error_bound = _error_bound(gradient, descent.y, energy.bounds())
        if diagnostics:
            energies = sets.real(energy.value(descent.y))
        occupied = sets.counts > 0
        penalty = torch.where(occupied, descent.squared_gradient, 0).sum()
        path = descent.trajectory
        return Solution(
            y=self._output(problem, descent.y),
            energy=energies,
            residual=residual,
            converged=converged,
            finite=finite,
            occupied=sets.real(occupied),
            aux_loss=penalty / occupied.sum().clamp(min=1),
            trajectory=torch.stack([self._output(problem, y) for y in path]) if path else None,
            num_steps=self._budget().num_steps,
            steps=sets.real(descent.steps),
            error_bound=None if error_bound is None else sets.real(error_bound),
            fallback=None if descent.fallback is None else sets.real(descent.fallback),
        )

    def _check_sizes(self) -> None:
        for part, name in product(("potential", "start"), ("in_channels", "out_channels")):
            found, expected = getattr(getattr(self, part), name, None), getattr(self, name)
            if found is not None and found != expected:
                raise ValueError(f"the {part}'s {name} is {found}, expected {expected}")

    def _check_fits(self, x: Tensor) -> None:
        if x.shape[-1] != self.in_channels:
            raise ValueError(
                f"x has {x.shape[-1]} channels, expected in_channels = {self.in_channels}"
            )
        tensors = chain(self.parameters(), self.buffers())
        parameter = next((tensor for tensor in tensors if tensor.is_floating_point()), None)
        if parameter is not None and parameter.device != x.device:
            raise ValueError(
                f"x is on {x.device} and the layer on {parameter.device}, expected one device"
            )
        has_parameters = next(self.parameters(), None) is not None
        # Autocast brings shorter kinds together, but never float64 and another.
        autocast = torch.is_autocast_enabled(x.device.type) and torch.float64 not in (
            x.dtype, parameter.dtype if parameter is not None else None
        )  # fmt: skip
        if parameter is not None and has_parameters and parameter.dtype != x.dtype and not autocast:
            raise TypeError(
                f"x has dtype {x.dtype}, expected {parameter.dtype}, that of the layer's "
                "parameters: convert one of them, or use torch.autocast"
            )
        if self.check_finite and not bool(torch.isfinite(x).all()):
            raise ValueError("x has values that are not finite, expected finite ones")

    def extra_repr(self) -> str:
        steps = (
            f"num_steps={self.num_steps}"
            if self.max_steps is None
            else f"max_steps={self.max_steps}, tolerance={self.tolerance}"
        )
        return (
            f"{self.in_channels}, {self.out_channels}, {steps}, "
            f"scaling={self.scaling!r}, differentiation={self.differentiation!r}"
        )


def _check_steps(name: str, steps: int) -> None:
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise ValueError(f"{name} is {steps!r}, expected an int of 0 or more")


def _error_bound(gradient: Tensor, y: Tensor, bounds: Bounds | None) -> Tensor | None:
    """`|y - y*| <= |g| / m` for an energy that is strongly convex with modulus m, and some more for
    the rounding of g. A set without elements has no energy, and its output is what it is."""
    if bounds is None:
        return None
    norm, size = (torch.linalg.vector_norm(rows, dim=-1) for rows in (gradient, y))
    rounding = ROUNDINGS * torch.finfo(y.dtype).eps * bounds.upper * (1 + size)
    bound = (norm + rounding) / bounds.lower
    return torch.where(bounds.upper == 0, norm, bound).nan_to_num(nan=torch.inf)


def _products_are_short(x: Tensor) -> bool:
    """Whether the gradient is not known to float32's precision."""
    autocast = torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64
    return autocast or x.dtype.itemsize < 4
