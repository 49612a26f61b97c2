"""What the classifier and the regressor share: reading, training, predicting."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from joblib import Parallel, delayed
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from equipool.baselines import AGGREGATIONS
from equipool.estimators.bags import Array, Bags, as_array
from equipool.estimators.explanation import effects
from equipool.estimators.export import PaddedBags, export_onnx
from equipool.estimators.member import History, MemberSettings, train_member
from equipool.estimators.network import BagNetwork
from equipool.estimators.prediction import predict_bags, to_tensor
from equipool.estimators.reading import BagReader
from equipool.estimators.saving import save
from equipool.estimators.scaling import check_clip, measure_scaling, warn_of_lost_resolution
from equipool.estimators.schedule import FEW, make_schedule
from equipool.estimators.table_methods import TableMethods
from equipool.estimators.task import LabelledBags, LossName
from equipool.training.devices import resolve_device

Auto = Literal["auto"]

# With few bags: the mean of several networks, each with dropout.
SEVERAL = 3
DROPOUT = 0.3


@dataclass(frozen=True, eq=False)
class Targets:
    """What the networks learn: the loss, its targets and their weights, both `[B, T]`, and the
    number of outputs."""

    loss: LossName
    values: Array
    weights: Array
    num_outputs: int


class SetEstimator(TableMethods, BagReader, ABC):
    """The base of `SetClassifier` and `SetRegressor`."""

    networks_: list[BagNetwork]
    history_: list[History]

    def __init__(
        self, aggregation: str = "equilibrium", *, clip: float | None = 3.0, hidden_size: int = 64,
        channels: int = 32, n_estimators: int | Auto = "auto", max_steps: int | Auto = "auto",
        batch_size: int | Auto = "auto", max_seconds: float | None = None,
        learning_rate: float = 3e-3, weight_decay: float = 1e-2, dropout: float | Auto = "auto",
        early_stopping: bool | Auto = "auto", validation_fraction: float = 0.1,
        n_iter_no_change: int = 10, max_elements: int = 1024, warm_start: bool = False,
        device: str = "auto", n_jobs: int | None = None, random_state: Any = None,
        verbose: int = 0,
    ) -> None:  # fmt: skip
        self.aggregation = aggregation
        self.clip = clip
        self.hidden_size = hidden_size
        self.channels = channels
        self.n_estimators = n_estimators
        self.max_steps = max_steps
        self.max_seconds = max_seconds
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

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Train on bags.

        Args:
            X: bags, in any form that `read_bags` knows.
            y: a target for each bag, or a row of them, NaN where one is missing.
            sample_weight: a weight for each bag.
        """
        self._check_parameters()
        self.__dict__.pop("table_schema_", None)  # fit_table sets it
        again = self.warm_start and hasattr(self, "networks_")
        bags = self._read(X, reset=not again)
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
            self.scaling_ = measure_scaling(bags, weights, self.clip)
            self.network_arguments_ = self._network_arguments(bags, targets.num_outputs)
        settings = self._settings(bags)
        warn_of_lost_resolution(bags, self.scaling_, settings.dtype)
        of_targets = targets.weights[labelled]
        data = LabelledBags(
            torch.from_numpy(self.scaling_(bags.elements, settings.dtype)),
            torch.from_numpy(bags.ptr),
            torch.from_numpy(targets.values[labelled].astype(settings.dtype)),
            torch.from_numpy((of_targets / of_targets.mean()).astype(settings.dtype)),
        )
        member = partial(train_member, data=data, loss=targets.loss, settings=settings)
        few = SEVERAL if len(bags) < FEW else 1
        count = few if self.n_estimators == "auto" else int(self.n_estimators)
        self._train(member, count, again)
        return self

    def _train(
        self, member: Callable[..., tuple[BagNetwork, History]], count: int, again: bool
    ) -> None:
        """Train the networks, each from a seed of its own."""
        random = check_random_state(self.random_state)
        seeds = [int(seed) for seed in random.randint(2**31 - 1, size=count)]
        make_network = partial(BagNetwork, **self.network_arguments_)
        makers: list[Callable[[], nn.Module]] = [make_network] * len(seeds)
        if again:
            if len(self.networks_) != count:
                raise ValueError(
                    f"there would be {count} networks, but the first fit had "
                    f"{len(self.networks_)}: warm_start cannot change n_estimators"
                )
            makers = [partial(deepcopy, network) for network in self.networks_]
        results = Parallel(n_jobs=self.n_jobs if count > 1 else None)(
            delayed(member)(maker, seed, f"network {number} of {count}")
            for number, (maker, seed) in enumerate(zip(makers, seeds, strict=True), 1)
        )
        self.networks_ = [network for network, _ in results]
        self.history_ = [history for _, history in results]

    def _network_arguments(self, bags: Bags, num_outputs: int) -> dict[str, Any]:
        few = DROPOUT if len(bags) < FEW else 0.0
        dropout = few if self.dropout == "auto" else float(self.dropout)
        return {
            "in_channels": bags.num_features,
            "out_channels": num_outputs,
            "aggregation": self.aggregation,
            "encoder": (self.hidden_size,) if self.hidden_size else (),
            "channels": self.channels,
            "dropout": dropout,
            "set_size": max(round(float(bags.sizes.mean())), 1),
        }

    def _settings(self, bags: Bags) -> MemberSettings:
        count, validates = len(bags), self.early_stopping
        if validates == "auto":
            validates = count >= FEW
        held_out = min(max(round(self.validation_fraction * count), 1), count - 1)
        held_out = held_out if validates else 0
        schedule = make_schedule(
            bags.sizes[: count - held_out],
            self.max_elements,
            None if self.batch_size == "auto" else int(self.batch_size),
            None if self.max_steps == "auto" else int(self.max_steps),
            self.n_iter_no_change if held_out else None,
        )
        return MemberSettings(
            schedule, held_out, self.max_elements, self.learning_rate, self.weight_decay,
            self.max_seconds, self._device(), self.verbose > 0,
        )  # fmt: skip

    def _device(self) -> torch.device:
        return resolve_device(None if self.device == "auto" else self.device)

    def _outputs(self, X: Any) -> Array:
        """The networks' mean outputs for each bag, `[B, O]`."""
        check_is_fitted(self)
        bags = self._read(X, reset=False)
        return predict_bags(self.networks_, self.scaling_, bags, self._device())

    def element_influence(self, bag: Any, method: str = "auto") -> Array:
        """What each element adds to the prediction of a bag: the output (`decision_function`, or
        the number predicted) minus the output without the element.

        Args:
            bag: the elements, `[n, d]`.
            method: `"exact"` predicts again without each element; `"newton"` uses
                `equipool.influence`, whose cost grows linearly, and requires an equilibrium;
                `"auto"` is `"newton"` for an equilibrium with 256 elements or more, else `"exact"`.

        Returns:
            `[n]`, or `[n, outputs]` for more than two classes or several columns.
        """
        check_is_fitted(self)
        if method not in ("auto", "exact", "newton"):
            raise ValueError(f"method is {method!r}, expected 'auto', 'exact' or 'newton'")
        elements = as_array(bag)
        if elements.ndim > 2 or (elements.ndim == 1 and elements.dtype == object):
            raise ValueError(f"bag holds {len(elements)} bags, expected one bag of shape [n, d]")
        bags, device = self._read([bag], reset=False), self._device()
        x = to_tensor(self.scaling_, bags, self.networks_[0]).to(device)
        found = torch.stack([effects(one.to(device), x, method) for one in self.networks_])
        outputs = found.mean(0).cpu().numpy() * self._output_scale()
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs

    def save(self, folder: str | Path) -> None:
        """Write the fitted estimator to a folder: `model.json` and `weights.safetensors`. Read it
        with `equipool.estimators.load`.

        Args:
            folder: created if it does not exist.
        """
        check_is_fitted(self)
        save(self, folder)

    def export_onnx(self, file: str | Path) -> None:
        """Write an ONNX model of the fitted estimator, which runs without torch.

        It maps `x [B, L, d]`, float32, not scaled, and `mask [B, L]`, True for real elements, to
        `y [B, ...]`: `predict_proba` of a classifier, `predict` of a regressor.

        Args:
            file: the file to write.
        """
        check_is_fitted(self)
        model = PaddedBags(self.networks_, self.scaling_, self._finish)
        export_onnx(model, self.n_features_in_, file)

    @abstractmethod
    def _finish(self, outputs: Tensor) -> Tensor:
        """What an exported model gives for the networks' outputs `[B, O]`."""

    @abstractmethod
    def _output_scale(self) -> Array | float:
        """The unit of the networks' outputs."""

    def _check_parameters(self) -> None:
        def expect(name: str, met: bool, expected: str) -> None:
            if not met:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected {expected}")

        known = self.aggregation in AGGREGATIONS
        expect("aggregation", known, f"one of {list(AGGREGATIONS)}")
        for name in ("channels", "n_iter_no_change", "max_elements"):
            expect(name, _is_count(getattr(self, name)), "a whole number of 1 or more")
        for name in ("n_estimators", "max_steps", "batch_size"):
            value = getattr(self, name)
            expect(name, value == "auto" or _is_count(value), "'auto' or a number of 1 or more")
        check_clip(self.clip)
        expect("hidden_size", self.hidden_size >= 0, "0 or more")
        expect("learning_rate", self.learning_rate > 0, "more than 0")
        expect("weight_decay", self.weight_decay >= 0, "0 or more")
        positive = self.max_seconds is None or self.max_seconds > 0
        expect("max_seconds", positive, "more than 0, or None")
        rate = 0.0 if self.dropout == "auto" else self.dropout
        expect("dropout", 0 <= rate < 1, "'auto', or at least 0 and less than 1")
        expect("early_stopping", self.early_stopping in (True, False, "auto"), "a bool or 'auto'")
        expect("validation_fraction", 0 < self.validation_fraction < 1, "between 0 and 1")


def _is_count(value: Any) -> bool:
    return isinstance(value, Integral) and value is not True and int(value) >= 1


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
