"""Smooth maps from an unconstrained parameter to a range, exact at the initial value."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus


class LearnedScalar(nn.Module):
    """A number in a range, `constrain(origin, raw)`, which is exactly `origin` at `raw = 0`.

    `raw` is learned without constraints, so weight decay pulls the number towards its origin. With
    `learnable=False` it requires no gradient.
    """

    origin: Tensor

    def __init__(self, origin: float, learnable: bool) -> None:
        super().__init__()
        self.given = float(origin)
        self.register_buffer("origin", torch.tensor(self.given))
        self.raw = nn.Parameter(torch.zeros(()), requires_grad=learnable)

    @staticmethod
    @abstractmethod
    def constrain(origin: Tensor, raw: Tensor) -> Tensor:
        """The number at `raw`. The origin is not differentiated."""

    def reset_parameters(self) -> None:
        """Reset to the value given at construction."""
        nn.init.constant_(self.origin, self.given)
        nn.init.zeros_(self.raw)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> LearnedScalar:
        """Convert with the module, but keep the precision of the origin: 0.999 is 1 in bfloat16."""
        origin = self.origin
        super()._apply(fn, recurse)
        if self.origin.dtype.itemsize < 4:
            self.origin = origin.to(self.origin.device, torch.float32)
        elif self.origin.dtype.itemsize > origin.dtype.itemsize and not origin.is_meta:
            exact = torch.tensor(self.given, dtype=self.origin.dtype, device=self.origin.device)
            if bool(exact.to(origin.dtype) == origin.to(exact.device)):  # as given, but rounded
                self.origin = exact
        return self

    def forward(self) -> Tensor:
        dtype = torch.promote_types(self.origin.dtype, torch.float32)
        origin = self.origin.to(dtype)
        number = self.constrain(origin, self.raw.to(dtype))
        if self.raw.requires_grad:
            return number
        return torch.where(self.raw == 0, origin, number)  # which may be 0, where the range ends

    def extra_repr(self) -> str:
        return f"{self().item():.4g}"


class PositiveScalar(LearnedScalar):
    r"""A positive number, $v = v_0 \, \mathrm{softplus}(r + c) / \mathrm{softplus}(c)$ where
    $\mathrm{softplus}(c) = v_0$: the paper's softplus, without the rounding at the start."""

    @staticmethod
    def constrain(origin: Tensor, raw: Tensor) -> Tensor:
        center = origin + torch.log(-torch.expm1(-origin))
        return origin * (softplus(raw + center) / softplus(center))

    def __init__(self, name: str, origin: float, learnable: bool = True) -> None:
        lowest = "more than 0" if learnable else "0 or more"
        if not math.isfinite(origin) or origin < 0 or (learnable and origin == 0):
            raise ValueError(f"{name} is {origin}, expected {lowest}")
        super().__init__(origin, learnable)


class FractionScalar(LearnedScalar):
    r"""A number from 0 up to 1, $v = v_0 / (v_0 + (1 - v_0) e^{-r})$: the paper's
    $\mathrm{sigmoid}(r + c)$ where $\mathrm{sigmoid}(c) = v_0$, without the rounding at the start.
    """

    @staticmethod
    def constrain(origin: Tensor, raw: Tensor) -> Tensor:
        return origin / (origin + (1 - origin) * torch.exp(-raw))

    def __init__(self, name: str, origin: float, learnable: bool = True) -> None:
        if not 0 <= origin < 1:
            raise ValueError(f"{name} is {origin}, expected at least 0 and less than 1")
        super().__init__(origin, learnable and origin > 0)  # 0 stays 0
