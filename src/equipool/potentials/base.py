"""What a potential is, and how its sum over a set is taken and differentiated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from equipool.objective import Bounds, LinearMap, Minimum
from equipool.ops.derivatives import separate
from equipool.ops.execution import is_batched, shapes_are_fixed
from equipool.private_torch import GLOBAL_BACKWARD_HOOKS, Dropout
from equipool.sets import Sets


class SummedPotential(ABC):
    """The potential of one batch, summed over each set, as a function of the sets' `y` alone.

    A subclass must provide `value` and `gradient`. Both treat every row of y by itself, and the
    gradient must be differentiable with respect to y, x and every parameter: `Unrolled`
    differentiates through it. The other methods are optional; override

    - `hessian`, if a product with the Hessian is cheaper than by automatic differentiation,
    - `restrict`, to save time when some sets of a batch have stopped: without it, the search
      computes all of them until the last has stopped,
    - `bounds`, if bounds of the curvature are known, which `StronglyConvexNesterov` needs,
    - `minimum`, if the minimum itself can be computed, which `Exact` needs. Over chunks and
      processes `Exact` uses `gradient` and `hessian` instead: channels must be independent there.

    Example:
        >>> class SummedDistance(equipool.potentials.SummedPotential):
        ...     def __init__(self, x, sets):
        ...         self.x, self.sets = x, sets
        ...     def value(self, y):
        ...         return self.sets.sum((self.x - self.sets.spread(y)).square().sum(-1))
        ...     def gradient(self, y):
        ...         return self.sets.sum(2 * (self.sets.spread(y) - self.x))
        >>> class Distance(equipool.potentials.Potential):
        ...     def forward(self, x, y):
        ...         return (x - y).square().sum(-1)
        ...     def bind(self, x, sets):
        ...         return SummedDistance(x, sets)
        >>> layer = equipool.EquilibriumAggregation(3, 3, potential=Distance(), steps=50)
        >>> layer.solve(torch.randn(5, 3)).converged
        tensor([True])
    """

    has_all = True
    """Whether all elements of a set are here at once, as `minimum` needs them."""

    @abstractmethod
    def value(self, y: Tensor) -> Tensor:
        """The sum over each set, `[num_rows, K] -> [num_rows]`."""

    @abstractmethod
    def gradient(self, y: Tensor) -> Tensor:
        """Its gradient with respect to y, `[num_rows, K]`; differentiable itself."""

    def hessian(self, y: Tensor) -> LinearMap:
        """The product with the Hessian at y, without a graph."""
        product = torch.func.vjp(self.gradient, y.detach())[1]
        return lambda direction: product(direction)[0].detach()

    def restrict(self, rows: Tensor) -> SummedPotential | None:
        """The same for some rows alone, given by ascending numbers; None if not available."""
        return None

    def bounds(self) -> Bounds | None:
        """Bounds of the Hessian's eigenvalues over all y, or None if they are not known."""
        return None

    def minimum(self, pull: Tensor | None, max_passes: int) -> Minimum:
        r"""The minimum over y of this sum plus $\frac{1}{2} \sum_k p_k y_k^2$, with its gradient;
        zero in rows without elements.

        Args:
            pull: $p \ge 0$, `[num_rows, 1]` or `[num_rows, K]`; None for zero.
            max_passes: how often the elements may be read.
        """
        raise TypeError(
            f"{type(self).__name__} has no minimum(), which the solver Exact asks for: use another "
            "solver, or a LocationPotential"
        )


class Potential(nn.Module):
    """The disagreement `F(x, y) -> [N]` between an element and the output of its set.

    Any module with that call is a potential. A subclass of this class must provide `forward`. It
    may override `bind`, which returns the sum over the sets of a batch as a `SummedPotential`, if
    that sum or its gradient can be computed faster than by automatic differentiation. If it has
    attributes `in_channels` and `out_channels`, the layer compares them with its own.

    Example:
        >>> class Quadratic(torch.nn.Module):
        ...     def forward(self, x, y):
        ...         return (x - y).square().sum(-1)
        >>> layer = equipool.EquilibriumAggregation(3, 3, potential=Quadratic())
        >>> layer(torch.randn(5, 3)).shape
        torch.Size([1, 3])
    """

    regularizer_weight = 0.1
    """Initial weight of the squared norm that a layer adds if it is given no regulariser."""

    exact = False
    """Whether the sum has a `minimum`: the default solver of a layer is then `Exact`."""

    @abstractmethod
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Potential of each element.

        Args:
            x: elements, `[N, C]`.
            y: for each element the output of its set, `[N, K]`.
        """

    def bind(self, x: Tensor, sets: Sets) -> SummedPotential:
        """This potential summed over each set of a batch whose elements are in set order."""
        return AutogradSum(self, x, sets)


class AutogradSum(SummedPotential):
    """Any potential summed over sets, with its gradient by automatic differentiation.

    Args:
        potential: `x [N, C]`, `y [N, K]` -> `[N]`.
        x: the elements of the batch in set order, `[N, C]`.
        sets: the sets of the batch.
    """

    def __init__(
        self, potential: Callable[[Tensor, Tensor], Tensor], x: Tensor, sets: Sets
    ) -> None:
        self.potential = potential
        self.x = x
        self.sets = sets

    def value(self, y: Tensor) -> Tensor:
        # y is spread before it is rounded to the elements' precision: the adjoint of spreading is
        # a sum over the set, and sums are taken in y's precision.
        rows = self.sets.spread(y).to(self.x.dtype)
        values = self.potential(self.x, rows)
        if values.shape != self.x.shape[:1]:
            raise ValueError(
                f"the potential returned shape {list(values.shape)} for {self.x.shape[0]} "
                f"elements, expected [{self.x.shape[0]}]: one value for each"
            )
        return self.sets.sum(values.to(y.dtype))

    def gradient(self, y: Tensor) -> Tensor:
        # A non-finite row may be left out of the loss, but must not reach other rows.
        point, rest = separate(y)
        state = self._random_state(point)
        gradient = self._gradient(point)
        if state is not None and not torch.equal(state, torch.get_rng_state()):
            self._check_repeats(point)
        if torch.is_grad_enabled() and self.x.device.type == "cpu" and not shapes_are_fixed():
            gradient = self._without_overflow(point, gradient)
        return gradient + rest

    def _random_state(self, y: Tensor) -> Tensor | None:
        """The state of torch's generator, where reading it is free."""
        free = y.device.type == "cpu" and not shapes_are_fixed() and not is_batched(y)
        return torch.get_rng_state() if free else None

    @torch.no_grad()
    def _check_repeats(self, y: Tensor) -> None:
        """Reject a potential that is random, such as by `torch.nn.functional.dropout`. Another
        thread may have drawn the numbers instead."""
        one, other = self.value(y), self.value(y)
        if not torch.allclose(one, other, equal_nan=True):
            raise ValueError(
                f"the potential {type(self.potential).__name__} draws random numbers, expected one "
                "that has the same values at each step: there is no fixed energy to descend"
            )

    def _without_overflow(self, y: Tensor, gradient: Tensor) -> Tensor:
        """The gradient, in whose graph are no non-finite rows. On a GPU finding out would
        wait for the device."""
        if is_batched(gradient) or bool(torch.isfinite(gradient).all()):
            return gradient
        (rows,) = torch.isfinite(gradient).all(-1).nonzero(as_tuple=True)
        finite = self.restrict(rows)._gradient(y.index_select(0, rows))
        return gradient.detach().index_copy(0, rows, finite)

    def _gradient(self, y: Tensor) -> Tensor:
        if not _has_backward_hooks(self.potential):
            return torch.func.grad(lambda y: self.value(y).sum())(y)
        # Backward hooks of modules do not pass through torch.func.
        recorded = torch.is_grad_enabled()
        with torch.enable_grad():
            point = y.view_as(y) if y.requires_grad else y.detach().requires_grad_()
            total = self.value(point).sum()
            return torch.autograd.grad(total, point, create_graph=recorded)[0]

    def restrict(self, rows: Tensor) -> Self:
        elements, sets = self.sets.restrict(rows)
        return type(self)(self.potential, self.x.index_select(0, elements), sets)


def sum_over(potential: nn.Module, x: Tensor, sets: Sets) -> SummedPotential:
    """Any potential summed over each set of a batch whose elements are in set order."""
    _check_draws_nothing(potential)
    if not isinstance(potential, Potential):
        return AutogradSum(potential, x, sets)
    summed = potential.bind(x, sets)
    if not isinstance(summed, SummedPotential):
        raise TypeError(
            f"{type(potential).__name__}.bind returned {type(summed).__name__}, expected "
            "a subclass of equipool.potentials.SummedPotential"
        )
    return summed


def _check_draws_nothing(potential: nn.Module) -> None:
    """Reject torch's dropout inside a potential, which draws other units at each evaluation."""
    if not potential.training:
        return
    for name, module in potential.named_modules():
        if type(module).__module__.startswith("torch.nn.") and dropout_rate(module) > 0:
            raise ValueError(
                f"potential.{name} is {module}, expected no dropout: it would drop other units at "
                "each step, so that there is no fixed energy to descend. Use "
                "ResNetPotential(dropout=...), or call its eval()"
            )


def dropout_rate(module: nn.Module) -> float:
    """The rate at which a module by itself, not its parts, drops units now."""
    rate = getattr(module, "p" if isinstance(module, Dropout) else "dropout", 0)
    return float(rate) if module.training and isinstance(rate, int | float) else 0.0


def drops_units(module: nn.Module) -> bool:
    """Whether a module or a part of it drops units now, by torch's modules or by an attribute
    `dropout` that is a rate."""
    return any(dropout_rate(part) > 0 for part in module.modules())


def check_no_dropout(name: str, module: nn.Module, reason: str) -> None:
    """Reject a module that drops units."""
    if drops_units(module):
        rate = max(map(dropout_rate, module.modules()))
        raise ValueError(f"the {name}'s dropout is {rate}, expected 0 or evaluation mode: {reason}")


def _has_backward_hooks(potential: object) -> bool:
    modules = potential.modules() if isinstance(potential, nn.Module) else ()
    everywhere = any(GLOBAL_BACKWARD_HOOKS)
    return everywhere or any(m._backward_hooks or m._backward_pre_hooks for m in modules)


def draw_weights(weight: Tensor, std: float) -> None:
    """Draw from a normal distribution that is cut at two deviations."""
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def wide(tensor: Tensor) -> Tensor:
    """In float32 at least."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
