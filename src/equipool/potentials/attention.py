"""Attention pooling as the minimum of an energy."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from equipool.potentials.base import Potential


class Attention(Potential):
    r"""The potential of the paper's appendix B, with $y = [y_r, y_s]$ and weights
    $w(x) = e^{h \cdot x - c}$ for a query $h$:

    $$F(x, y) = w(x) \lVert x - y_r \rVert^2 + (y_s - w(x))^2.$$

    Setting its gradient to zero gives the softmax-weighted mean, and the mean weight:

    $$y_r = \frac{\sum_i w(x_i) x_i}{\sum_i w(x_i)}, \qquad y_s = \frac{1}{N} \sum_i w(x_i).$$

    The appendix gives $y_r = \frac{1}{N} \sum_i w(x_i) x_i$ and divides it by $y_s$. That is the
    minimum of another potential, $\lVert w(x) x - y_r \rVert^2 + (y_s - w(x))^2$; here $y_r$ is
    normalised already, and dividing it again would be wrong.

    The shift $c$, zero in the paper, cancels in $y_r$ and keeps the weights in range: in float32
    $e^{h \cdot x}$ overflows beyond 88. Under the scaling `"mean"` the energy's curvature by $y_r$
    is twice the mean weight $\bar w$, so a search without momentum needs a step size below
    $1 / \bar w$, and with step size $\alpha$ each step multiplies the error by
    $1 - 2 \alpha \bar w$. A shift near the largest score bounds the weights by about 1; a shift
    far above it makes the search slow.

    Args:
        query: $h$, `[C]`; becomes a parameter.
        shift: $c$.

    Shapes:
        `x [N, C]`, `y [N, C + 1]` -> `[N]`.
    """

    given: Tensor

    def __init__(self, query: Tensor, shift: float = 0.0) -> None:
        super().__init__()
        if query.dim() != 1 or query.numel() == 0 or not query.is_floating_point():
            raise ValueError(
                f"query has shape {list(query.shape)} and dtype {query.dtype}, "
                "expected [C] floating-point numbers"
            )
        self.in_channels = query.shape[0]
        self.out_channels = query.shape[0] + 1
        self.shift = shift
        self.query = nn.Parameter(query.detach().clone())
        self.register_buffer("given", query.detach().clone(), persistent=False)

    def reset_parameters(self) -> None:
        """Return the query to the one given at construction."""
        with torch.no_grad():
            self.query.copy_(self.given)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        weight = torch.exp(x @ self.query - self.shift)
        spread = (x - y[:, :-1]).square().sum(-1)
        return weight * spread + (y[:, -1] - weight).square()

    def extra_repr(self) -> str:
        return f"{self.in_channels}, shift={self.shift}"
