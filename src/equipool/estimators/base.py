"""What the classifier and the regressor share: reading, training, predicting."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from joblib import Parallel, delayed
from sklearn.base import BaseEstimator
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from equipool.baselines import AGGREGATIONS
from equipool.estimators.bags import Array, Bags, read_bags
from equipool.estimators.network import BagNetwork
from equipool.estimators.prediction import predict_bags
from equipool.estimators.scaling import measure_scaling
from equipool.estimators.schedule import ENOUGH_TO_VALIDATE, Schedule, make_schedule
from equipool.estimators.task import BagTask, LabelledBags, LossName
from equipool.training import TrainingConfig, fit
from equipool.training.devices import resolve_device

Auto = Literal["auto"]


@dataclass(frozen=True, eq=False)
class Targets:
    """What the networks learn: the loss, its targets and their weights, both `[B, T]`, and the
    number of outputs."""

    loss: LossName
    values: Array
    weights: Array
    num_outputs: int


class SetEstimator(BaseEstimator, ABC):
    """The base of `SetClassifier` and `SetRegressor`."""

    def __init__(
        self, aggregation: str = "equilibrium", *, hidden_size: int = 64, channels: int = 32,
        n_estimators: int = 1, max_steps: int | Auto = "auto", batch_size: int | Auto = "auto",
        learning_rate: float = 3e-3, weight_decay: float = 1e-2, dropout: float = 0.0,
        early_stopping: bool | Auto = "auto", validation_fraction: float = 0.1,
        n_iter_no_change: int = 5, max_elements: int = 1024, warm_start: bool = False,
        device: str = "auto", n_jobs: int | None = None, random_state: Any = None,
        verbose: int = 0,
    ) -> None:  # fmt: skip
        self.aggregation = aggregation
        self.hidden_size = hidden_size
        self.channels = channels
        self.n_estimators = n_estimators
        self.max_steps = max_steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.dropout = dropout
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.max_elements = max_elements
        self.warm_start = warm_start
        self.device = device
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    @abstractmethod
    def _make_targets(self, y: Any, weights: Array, again: bool) -> Targets:
        """Read y, and what the networks are to learn of it. With `again`, y must fit what the
        estimator has learned already."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:  # noqa: N803
        """Train on bags.

        Args:
            X: bags, in any form that `read_bags` knows.
            y: a target for each bag, or a row of them, NaN where one is missing.
            sample_weight: a weight for each bag.
        """
        self._check_parameters()
        again = self.warm_start and hasattr(self, "networks_")
        bags = self._read(X, reset=not again)
        if len(bags) == 0:
            raise ValueError(
                "Found array with 0 sample(s) (shape=(0,)) while a minimum of 1 is required."
            )
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None"
            )
        check_consistent_length(bags, y)
        weights = _read_weights(sample_weight, len(bags))
        targets = self._make_targets(y, weights, again)
        labelled = (targets.weights > 0).any(1)  # the others teach nothing
        if not labelled.all():
            bags, weights = bags.take(np.flatnonzero(labelled)), weights[labelled]
        if not again:
            self.scaling_ = measure_scaling(bags, weights)
        data = LabelledBags(
            torch.from_numpy(self.scaling_(bags.elements)),
            torch.from_numpy(bags.ptr),
            torch.from_numpy(targets.values[labelled].astype(np.float32)),
            torch.from_numpy(targets.weights[labelled].astype(np.float32)),
        )
        self._train(data, targets, again)
        return self

    def _train(self, data: LabelledBags, targets: Targets, again: bool) -> None:
        random = check_random_state(self.random_state)
        seeds = [int(seed) for seed in random.randint(2**31 - 1, size=self.n_estimators)]
        makers = [self._network_maker(data, targets)] * len(seeds)
        if again and len(self.networks_) != len(seeds):
            raise ValueError(
                f"n_estimators is {len(seeds)}, but the estimator was fitted with "
                f"{len(self.networks_)}: warm_start cannot change it"
            )
        if again:
            makers = [partial(deepcopy, network) for network in self.networks_]
        member = partial(train_member, data=data, loss=targets.loss, settings=self._settings(data))
        jobs = min(self.n_jobs or 1, len(seeds)) if (self.n_jobs or 1) > 0 else self.n_jobs
        results = Parallel(n_jobs=jobs)(
            delayed(member)(maker, seed) for maker, seed in zip(makers, seeds, strict=True)
        )
        self.networks_ = [network for network, _ in results]
        self.history_ = [history for _, history in results]

    def _network_maker(self, data: LabelledBags, targets: Targets) -> Callable[[], nn.Module]:
        usual = max(round(float(data.ptr.diff().double().mean())), 1)
        return partial(
            BagNetwork, self.n_features_in_, targets.num_outputs, aggregation=self.aggregation,
            encoder=(self.hidden_size,) if self.hidden_size else (), channels=self.channels,
            dropout=self.dropout, set_size=usual,
        )  # fmt: skip

    def _settings(self, data: LabelledBags) -> MemberSettings:
        count = len(data)
        validates = self.early_stopping
        if validates == "auto":
            validates = count >= ENOUGH_TO_VALIDATE
        held_out = min(max(round(self.validation_fraction * count), 1), count - 1)
        held_out = held_out if validates else 0
        sizes = data.ptr.diff().numpy()[: count - held_out]
        schedule = make_schedule(
            sizes,
            self.max_elements,
            None if self.batch_size == "auto" else int(self.batch_size),
            None if self.max_steps == "auto" else int(self.max_steps),
            self.n_iter_no_change if held_out else None,
        )
        return MemberSettings(
            schedule, held_out, self.max_elements, self.learning_rate, self.weight_decay,
            resolve_device(None if self.device == "auto" else self.device), self.verbose > 0,
        )  # fmt: skip

    def _outputs(self, X: Any) -> Array:  # noqa: N803
        """The networks' mean outputs for each bag, `[B, O]`."""
        check_is_fitted(self)
        bags = self._read(X, reset=False)
        if len(bags) == 0:
            raise ValueError(
                "Found array with 0 sample(s) (shape=(0,)) while a minimum of 1 is required."
            )
        device = resolve_device(None if self.device == "auto" else self.device)
        return predict_bags(self.networks_, self.scaling_, bags, device)

    def _read(self, X: Any, reset: bool) -> Bags:  # noqa: N803
        """The bags, whose features must be those of the training unless `reset`."""
        bags = read_bags(X)
        if _is_table(X):
            validate_data(self, X, reset=reset, skip_check_array=True)
        elif reset:
            self.n_features_in_ = bags.num_features
            vars(self).pop("feature_names_in_", None)
            if bags.names is not None:
                self.feature_names_in_ = np.array(bags.names, dtype=object)
        elif bags.names not in (None, tuple(getattr(self, "feature_names_in_", bags.names or ()))):
            raise ValueError(
                f"The feature names should match those that were passed during fit: found "
                f"{list(bags.names or ())}, expected {list(self.feature_names_in_)}"
            )
        if bags.num_features != self.n_features_in_:
            raise ValueError(
                f"X has {bags.num_features} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input"
            )
        return bags

    def _check_parameters(self) -> None:
        def expect(name: str, met: bool, expected: str) -> None:
            if not met:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected {expected}")

        known = self.aggregation in AGGREGATIONS
        expect("aggregation", known, f"one of {list(AGGREGATIONS)}")
        for name in ("channels", "n_estimators", "n_iter_no_change", "max_elements"):
            expect(name, _is_count(getattr(self, name)), "a whole number of 1 or more")
        for name in ("max_steps", "batch_size"):
            value = getattr(self, name)
            expect(name, value == "auto" or _is_count(value), "'auto' or a number of 1 or more")
        expect("hidden_size", self.hidden_size >= 0, "0 or more")
        expect("learning_rate", self.learning_rate > 0, "more than 0")
        expect("weight_decay", self.weight_decay >= 0, "0 or more")
        expect("dropout", 0 <= self.dropout < 1, "at least 0 and less than 1")
        expect("early_stopping", self.early_stopping in (True, False, "auto"), "a bool or 'auto'")
        expect("validation_fraction", 0 < self.validation_fraction < 1, "between 0 and 1")


@dataclass(frozen=True)
class MemberSettings:
    """How each network of an estimator is trained."""

    schedule: Schedule
    held_out: int  # validation bags
    max_elements: int
    learning_rate: float
    weight_decay: float
    device: torch.device
    verbose: bool


def train_member(
    make_network: Callable[[], nn.Module], seed: int, data: LabelledBags, loss: LossName,
    settings: MemberSettings,
) -> tuple[nn.Module, dict[str, Array]]:  # fmt: skip
    """Train one network. Returns it on the CPU, and its history."""
    training, validation, schedule = data, None, settings.schedule
    if settings.held_out:
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
        validation, training = (
            data.take(order[: settings.held_out]),
            data.take(order[settings.held_out :]),
        )
    task = BagTask(
        make_network, loss, training, validation, batch_size=schedule.batch_size,
        max_elements=settings.max_elements, seed=seed,
    )  # fmt: skip
    config = TrainingConfig(
        schedule.steps, learning_rate=settings.learning_rate, schedule="cosine",
        warmup_steps=min(20, schedule.steps // 10), weight_decay=settings.weight_decay,
        chunk=min(50, schedule.steps), log_every=schedule.evaluate_every,
        evaluate_every=schedule.evaluate_every,
    )  # fmt: skip
    fitted = fit(
        task, config, settings.device, patience=schedule.patience,
        progress=None if settings.verbose else False,
    )  # fmt: skip
    history = {"loss": fitted.history["loss"].numpy()}
    if validation is not None:
        curve = fitted.record.curve
        history["step"] = np.array([entry["step"] for entry in curve])
        history["validation_loss"] = np.array([entry["metrics"]["loss"] for entry in curve])
    return fitted.network.cpu(), history


def _is_table(X: Any) -> bool:  # noqa: N803
    """Whether X is a 2-D array or data frame, of which scikit-learn knows shape and names."""
    shape = getattr(X, "shape", None)
    return not isinstance(X, torch.Tensor) and shape is not None and len(shape) == 2


def _is_count(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= 1


def _read_weights(given: Any, count: int) -> Array:
    """A weight of 0 or more for each bag."""
    weights = np.ones(count) if given is None else np.asarray(given, dtype=np.float64)
    if weights.ndim == 0:
        weights = np.full(count, weights)
    if weights.shape != (count,):
        raise ValueError(
            f"sample_weight has shape {weights.shape}, expected ({count},): one for each bag"
        )
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError("sample_weight has negative or infinite values, expected 0 or more")
    if not weights.any():
        raise ValueError("sample_weight is zero for all bags, expected some above zero")
    return weights
