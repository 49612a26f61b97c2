"""Several runs on one device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from equipool.training.config import TrainingConfig
from equipool.training.loop import Plan, carry_out
from equipool.training.progress import Progress
from equipool.training.record import Record
from equipool.training.stop import Stop
from equipool.training.task import Task


def train_together(
    runs: Sequence[Plan | tuple[Task, TrainingConfig, str | Path]],
    resume: bool = False,
    device: str | torch.device | None = None,
    *,
    stop_after: float | Stop | None = None,
    progress: Progress | None = None,
    how_to_resume: str | None = None,
) -> list[Record]:
    """Train several runs at once, each as `train` would alone: same numbers, but for the
    rounding of convolutions on a GPU, same logs, same checkpoints.

    The runs take their steps in turn. On a GPU each has a stream of its own, so that steps too
    small to fill the device overlap. Runs that are done already are left as they are.

    Args:
        runs: task, config and directory of each; the precision is the same in all.
        resume: go on with the runs that are there; start the others.
        device: as in `train`.
        stop_after: seconds after which to stop all of them; or a `Stop` that several calls share,
            whose `reason` tells the caller, even where the runs were done when it came.
        progress: as in `train`.
        how_to_resume: as in `train`.

    Returns:
        The records, in the order of `runs`.
    """
    plans = [Plan(*run) for run in runs]
    _check(plans)
    how = how_to_resume or "train_together(the same runs, resume=True)"
    return carry_out(plans, resume, device, stop_after, progress, how)


def _check(plans: Sequence[Plan]) -> None:
    if not plans:
        raise ValueError("runs is empty, expected one or more")
    precisions = {plan.config.precision for plan in plans}
    if len(precisions) > 1:
        raise ValueError(f"the runs' precisions are {sorted(precisions)}, expected the same in all")
    folders = [Path(plan.out).resolve() for plan in plans]
    if len(set(folders)) < len(folders):
        raise ValueError("two of the runs have the same directory, expected one for each")
