"""Training of one network of an estimator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from equipool.estimators.bags import Array
from equipool.estimators.network import BagNetwork
from equipool.estimators.schedule import Schedule
from equipool.estimators.task import BagTask, LabelledBags, LossName
from equipool.training import TrainingConfig, fit

History = dict[str, Array]

AVERAGED_FROM = 500  # steps; an average of the last hundred weights lags too far behind in fewer


@dataclass(frozen=True)
class MemberSettings:
    """How each network of an estimator is trained."""

    schedule: Schedule
    held_out: int  # validation bags
    max_elements: int
    learning_rate: float
    weight_decay: float
    max_seconds: float | None
    device: torch.device
    verbose: bool

    @property
    def dtype(self) -> Any:
        """float64 where a step has all bags: the order of the bags, and whether one is repeated or
        has twice the weight, then changes nothing that could be noticed."""
        whole = self.schedule.whole and self.device.type == "cpu"
        return np.float64 if whole else np.float32


def train_member(
    make_network: Callable[[], nn.Module], seed: int, title: str, data: LabelledBags,
    loss: LossName, settings: MemberSettings,
) -> tuple[BagNetwork, History]:  # fmt: skip
    """Train one network, which progress calls `title`. Returns it on the CPU, and its history."""
    training, validation, schedule = data, None, settings.schedule
    if settings.held_out:
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
        validation, training = (
            data.take(order[: settings.held_out]),
            data.take(order[settings.held_out :]),
        )
    task = BagTask(
        make_network, loss, training, validation, batch_size=schedule.batch_size,
        max_elements=settings.max_elements, seed=seed, title=title,
    )  # fmt: skip
    config = TrainingConfig(
        schedule.steps, learning_rate=settings.learning_rate, schedule="cosine",
        warmup_steps=min(20, schedule.steps // 10), weight_decay=settings.weight_decay,
        chunk=min(50, schedule.steps), log_every=schedule.evaluate_every,
        evaluate_every=schedule.evaluate_every, aux_weight=0.0,  # the task adds it
        ema_decay=0.99 if schedule.steps >= AVERAGED_FROM else None,
        precision="64-true" if settings.dtype == np.float64 else "32-true",
    )  # fmt: skip
    with one_thread():
        fitted = fit(
            task, config, settings.device, patience=schedule.patience,
            stop_after=settings.max_seconds, progress=None if settings.verbose else False,
        )  # fmt: skip
    history = {"loss": fitted.history["loss"].numpy()}
    if validation is not None:
        curve = fitted.record.curve
        history["step"] = np.array([entry["step"] for entry in curve])
        history["validation_loss"] = np.array([entry["metrics"]["loss"] for entry in curve])
    network: Any = fitted.network
    return network.cpu(), history


@contextmanager
def one_thread() -> Iterator[None]:
    """torch uses one thread inside the block. Steps are small: several threads gain little, lose
    much beside other processes, and would change the rounding from machine to machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
