"""What the classifier and the regressor share: reading, training, predicting."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import numpy as np
import torch
from joblib import Parallel, delayed
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted
from torch import Tensor, nn

from equipool.environment import resolve_device
from equipool.estimators.bags import Array, BagReader, Bags
from equipool.estimators.prediction import effects, predict_bags, to_tensor
from equipool.estimators.saving import PaddedBags, export_onnx, save
from equipool.estimators.tables import TableMethods
from equipool.estimators.training import (
    FEW,
    BagNetwork,
    LabelledBags,
    LossName,
    Settings,
    Stopped,
    train_network,
    usual_batch_size,
    usual_steps,
)
from equipool.estimators.transformers import Positive, measure_scaling, warn_of_lost_resolution
from equipool.settings import Count, OneOf, Range, Share, check

Auto = Literal["auto"]
Aggregation = str | Callable[[int, int], nn.Module]

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


@dataclass(eq=False, repr=False)
class SetEstimator(TableMethods, BagReader, ABC):
    """The base of `SetClassifier` and `SetRegressor`."""

    aggregation: Aggregation = "equilibrium"
    _: KW_ONLY
    clip: Positive | None = 3.0
    hidden_size: Annotated[int, Range(least=0)] = 64
    channels: Count = 32
    n_estimators: Count | Auto = "auto"
    max_iter: Count | Auto = "auto"
    batch_size: Count | Auto = "auto"
    max_seconds: Positive | None = None
    learning_rate: Positive = 3e-3
    weight_decay: Annotated[float, Range(least=0)] = 1e-2
    dropout: Share | Auto = "auto"
    early_stopping: bool | Auto = "auto"
    validation_fraction: Annotated[float, Range(above=0, below=1)] = 0.1
    n_iter_no_change: Count = 10
    max_elements: Count = 1024
    warm_start: bool = False
    device: str = "auto"
    n_jobs: int | None = None
    random_state: Any = None
    verbose: int = 0

    networks_: list[BagNetwork] = field(init=False)
    history_: list[dict[str, Array]] = field(init=False)
    n_iter_: int = field(init=False)
    stopped_: list[Stopped] = field(init=False)

    @abstractmethod
    def _make_targets(self, y: Any, weights: Array, again: bool) -> Targets:
        """Read y, and what the networks are to learn of it. With `again`, y must fit what the
        estimator has learned already."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Train on bags.

        Args:
            X: bags, in any form that `as_bags` knows.
            y: a target for each bag, or a row of them, NaN where one is missing.
            sample_weight: a weight for each bag.
        """
        self._check_parameters()
        self.__dict__.pop("table_schema_", None)  # fit_table sets it
        again = self.warm_start and hasattr(self, "networks_")
        bags = self._read(X, reset=not again)
        check_consistent_length(bags, y)
        weights = _check_sample_weight(
            sample_weight, bags, dtype=np.float64, ensure_non_negative=True
        )
        targets = self._make_targets(y, weights, again)
        labelled = np.flatnonzero((targets.weights > 0).any(1))  # the others teach nothing
        if len(labelled) < len(bags):
            bags, weights = bags[labelled], weights[labelled]
        if not again:
            self.scaling_ = measure_scaling(bags, weights, self.clip)
            self.network_arguments_ = self._network_arguments(bags, targets.num_outputs)
        settings = self._settings(bags)
        warn_of_lost_resolution(bags, self.scaling_, settings.dtype)
        values, of_targets = targets.values[labelled], targets.weights[labelled]
        data = LabelledBags(
            torch.from_numpy(self.scaling_(bags.elements, settings.dtype)),
            torch.from_numpy(bags.ptr),
            torch.from_numpy(values.astype(settings.dtype)),
            torch.from_numpy((of_targets / of_targets.mean()).astype(settings.dtype)),
        )
        few = SEVERAL if len(bags) < FEW else 1
        count = few if self.n_estimators == "auto" else int(self.n_estimators)
        makers: list[Callable[[], nn.Module]]
        makers = [partial(BagNetwork, **self.network_arguments_)] * count
        if again:
            if len(self.networks_) != count:
                raise ValueError(
                    f"there would be {count} networks, but the first fit had "
                    f"{len(self.networks_)}: warm_start cannot change n_estimators"
                )
            makers = [partial(deepcopy, network) for network in self.networks_]
        seeds = check_random_state(self.random_state).randint(2**31 - 1, size=count)
        trained = Parallel(n_jobs=self.n_jobs if count > 1 else None)(
            delayed(train_network)(maker, int(seed), data, targets.loss, settings)
            for maker, seed in zip(makers, seeds, strict=True)
        )
        self.networks_, self.history_, self.stopped_ = map(list, zip(*trained, strict=True))
        self.n_iter_ = max(len(history["loss"]) for history in self.history_)
        return self

    def _network_arguments(self, bags: Bags, num_outputs: int) -> dict[str, Any]:
        few = DROPOUT if len(bags) < FEW else 0.0
        dropout = few if self.dropout == "auto" else float(self.dropout)
        return {
            "in_channels": bags.num_features,
            "out_channels": num_outputs,
            "aggregation": self.aggregation,
            "hidden_size": self.hidden_size,
            "channels": self.channels,
            "dropout": dropout,
            "set_size": max(round(float(bags.sizes.mean())), 1),
        }

    def _settings(self, bags: Bags) -> Settings:
        count, validates = len(bags), self.early_stopping
        if validates == "auto":
            validates = count >= FEW
        held_out = min(max(round(self.validation_fraction * count), 1), count - 1)
        held_out = held_out if validates else 0
        count -= held_out
        size = usual_batch_size(bags.sizes[:count], self.max_elements)
        size = min(size if self.batch_size == "auto" else int(self.batch_size), count)
        steps = usual_steps(count, size) if self.max_iter == "auto" else int(self.max_iter)
        return Settings(
            size, steps, size == count, held_out, self.n_iter_no_change, self.max_elements,
            self.learning_rate, self.weight_decay, self.max_seconds, self._device(),
            self.verbose > 0,
        )  # fmt: skip

    def _device(self) -> torch.device:
        return resolve_device(None if self.device == "auto" else self.device)

    def _outputs(self, X: Any) -> Array:
        """The networks' mean outputs for each bag, `[B, O]`."""
        check_is_fitted(self)
        bags = self._read(X, reset=False)
        return predict_bags(self.networks_, self.scaling_, bags, self._device())

    def influence(self, X: Any, method: str = "auto") -> list[Array]:
        """What each element of each bag contributes: the output with it (`decision_function`, or
        the number predicted) minus the output without it.

        Args:
            X: bags, as in `predict`.
            method: `"exact"` predicts again without each element; `"newton"` uses
                `equipool.influence`, whose cost grows linearly, and requires an equilibrium;
                `"auto"` is `"newton"` for an equilibrium with 256 elements or more, else `"exact"`.

        Returns:
            For each bag `[n]`, or `[n, outputs]` for more than two classes or several columns.
        """
        check_is_fitted(self)
        if method not in ("auto", "exact", "newton"):
            raise ValueError(f"method is {method!r}, expected 'auto', 'exact' or 'newton'")
        bags, device = self._read(X, reset=False), self._device()
        networks = [network.to(device) for network in self.networks_]
        found = []
        for number in range(len(bags)):
            x = to_tensor(self.scaling_, bags[number], networks[0]).to(device)
            effect = torch.stack([effects(one, x, method) for one in networks]).mean(0)
            outputs = effect.cpu().numpy() * getattr(self, "target_scale_", 1.0)
            found.append(outputs[:, 0] if outputs.shape[1] == 1 else outputs)
        return found

    def save(self, file: str | Path) -> None:
        """Write the fitted estimator to one file, atomically and with a checksum. Read it with
        `equipool.estimators.load`; nothing is pickled.

        Args:
            file: the file to write.
        """
        check_is_fitted(self)
        save(self, file)

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

    def _check_parameters(self) -> None:
        hints = get_type_hints(type(self), include_extras=True)
        if not callable(self.aggregation):
            hints["aggregation"] = Annotated[str, OneOf("equipool.baselines.AGGREGATIONS")]
        for name, value in self.get_params(deep=False).items():
            check(
                name, value.item() if isinstance(value, np.generic) else value, hints.get(name, Any)
            )
