"""The base class of differentiation methods."""

from __future__ import annotations

from abc import ABC, abstractmethod

from equipool.descent import Descent, Search


class Differentiation(ABC):
    """How gradients pass through the search.

    A subclass must provide `__call__`: it runs the search and returns a `Descent` whose `y` carries
    the gradient. `Unrolled` returns `search.solve()`, which autograd records step by step.

    Example:
        A gradient that ignores the search: `y` as a constant.

        >>> class NoGradient(equipool.differentiation.Differentiation):
        ...     def __call__(self, search):
        ...         with torch.no_grad():
        ...             return search.solve()
        >>> layer = equipool.EquilibriumAggregation(3, 8, differentiation=NoGradient())
        >>> layer(torch.randn(5, 3)).requires_grad
        False
    """

    capturable = True
    """Whether the backward pass can be recorded as a CUDA graph."""

    @abstractmethod
    def __call__(self, search: Search) -> Descent:
        """Run the search."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Unrolled(Differentiation):
    """Differentiate through every step, as the paper does: the exact gradient of the output,
    converged or not."""

    def __call__(self, search: Search) -> Descent:
        return search.solve()
