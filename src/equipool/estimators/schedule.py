"""How long to train, and on how much at a time, by the size of the data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipool.estimators.bags import Array

ELEMENTS = 8192  # per training step, about
LARGEST_BATCH = 64  # bags
SMALLEST_BATCH = 8
FEW = 500  # bags; with fewer, several networks are trained, and none are held out
EPOCHS = 30
STEPS = (150, 4000)  # at least and at most
EVALUATIONS = 20


@dataclass(frozen=True)
class Schedule:
    """Numbers of a training run."""

    batch_size: int
    steps: int
    evaluate_every: int
    patience: int | None  # evaluations; None takes all steps
    whole: bool  # whether a step has all bags


def make_schedule(
    sizes: Array, max_elements: int, batch_size: int | None, steps: int | None, patience: int | None
) -> Schedule:
    """The schedule for training bags of these sizes `[B]`. None chooses by size, except for
    `patience`.

    A step has about `ELEMENTS` elements, in 8 to 64 bags. Training visits each bag 30 times, but
    takes at least 150 steps and at most 4,000.

    Example:
        >>> make_schedule(np.full(5000, 40), 1024, None, None, patience=5)
        Schedule(batch_size=64, steps=2343, evaluate_every=117, patience=5, whole=False)
    """
    if batch_size is None:
        usual = max(float(np.minimum(sizes, max_elements).mean()), 1.0)
        batch_size = int(np.clip(ELEMENTS / usual, SMALLEST_BATCH, LARGEST_BATCH))
    batch_size = min(batch_size, len(sizes))
    if steps is None:
        steps = int(np.clip(EPOCHS * len(sizes) / batch_size, *STEPS))
    every = steps if patience is None else max(steps // EVALUATIONS, 1)
    return Schedule(batch_size, steps, every, patience, batch_size == len(sizes))
