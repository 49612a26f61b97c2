"""What may hold a step back: a gradient too small to follow, and a box that y stays in."""

from __future__ import annotations

import math

from torch import Tensor


def check_restraint(gtol: float, clip_value: float | None) -> None:
    if not (math.isfinite(gtol) and gtol >= 0):
        raise ValueError(f"gtol is {gtol}, expected 0 or more")
    if clip_value is not None and not clip_value > 0:
        raise ValueError(f"clip_value is {clip_value}, expected more than 0, or None")


def restrained(
    y: Tensor, move: Tensor, gradient: Tensor, gtol: float, clip_value: float | None
) -> Tensor:
    """`y + move`, but y itself in rows whose largest gradient component is below gtol; then every
    component within `[-clip_value, clip_value]`."""
    moving = gradient.abs().amax(-1, keepdim=True) >= gtol
    y = y + moving * move
    return y if clip_value is None else y.clamp(-clip_value, clip_value)
