"""The Fréchet mean under any distance."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from equipool.potentials.base import Potential


class FrechetMean(Potential):
    r"""$F(x, y) = d(x, y)^2$ with a distance of your own, minimised by the Fréchet mean: the point
    with the least squared distance to the elements.

    Args:
        distance: maps `x [N, C]` and `y [N, K]` to the distances `[N]`; a function or a module.
            It must be differentiable where `x = y`, and at the layer's start. There
            `torch.linalg.vector_norm` and `abs` have the gradient 0; `sqrt` gives NaN. Training
            differentiates twice, and then `vector_norm` gives NaN, too: if elements may lie exactly
            at the start, add a tiny number under the root.

    Example:
        >>> def between_logarithms(x, y):
        ...     return (x.log() - y.log()).abs().sum(-1)
        >>> layer = equipool.EquilibriumAggregation(
        ...     1,
        ...     1,
        ...     potential=equipool.potentials.FrechetMean(between_logarithms),
        ...     regularizer=0,
        ...     scaling="mean",
        ...     solver=equipool.GradientDescent(0.5),
        ...     start=equipool.LearnedStart(1, value=1.0),
        ...     steps=100,
        ... )
        >>> layer(torch.tensor([[1.0], [2.0], [4.0]])).round(decimals=3)  # the geometric mean
        tensor([[2.]], grad_fn=...)
    """

    def __init__(self, distance: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.distance = distance

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.distance(x, y).square()
