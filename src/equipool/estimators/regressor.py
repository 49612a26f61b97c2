"""A regressor of bags."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils.validation import column_or_1d
from torch import Tensor

from equipool.estimators.bags import Array
from equipool.estimators.base import SetEstimator, Targets


class SetRegressor(RegressorMixin, SetEstimator):
    """A regressor of bags of vectors."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _make_targets(self, y: Any, weights: Array, again: bool) -> Targets:
        values = np.asarray(y)
        columns = values.ndim == 2 and values.shape[1] > 1
        values = values if columns else column_or_1d(y, warn=True)[:, None]
        values = values.astype(np.float64)
        missing = np.isnan(values)
        if missing.any() and not columns:
            raise ValueError("Input y contains NaN.")
        if not np.isfinite(values[~missing]).all():
            raise ValueError("Input y contains infinity or a value too large for dtype('float64').")
        of_targets = np.where(missing, 0.0, weights[:, None])
        total = of_targets.sum(0)
        if not total.all():
            raise ValueError("y has a column without any value")
        values = np.where(missing, 0.0, values)
        if not again:
            self.columns_ = columns
            self.target_mean_ = (of_targets * values).sum(0) / total
            squares = of_targets * (values - self.target_mean_) ** 2
            deviation = np.sqrt(squares.sum(0) / total)
            self.target_scale_ = np.where(deviation > 0, deviation, 1.0)
        elif columns != self.columns_ or len(self.target_mean_) != values.shape[1]:
            raise ValueError(f"y has {values.shape[1]} columns, but the first fit had not")
        scaled = (values - self.target_mean_) / self.target_scale_
        return Targets("numbers", scaled, of_targets / of_targets.mean(), values.shape[1])

    def predict(self, X: Any) -> Array:  # noqa: N803
        """A number for each bag `[B]`, or for each bag and column `[B, columns]`."""
        values = self._outputs(X) * self.target_scale_ + self.target_mean_
        return values if self.columns_ else values[:, 0]

    def _finish(self, outputs: Tensor) -> Tensor:
        scale, mean = (torch.tensor(one) for one in (self.target_scale_, self.target_mean_))
        values = outputs * scale.to(outputs) + mean.to(outputs)
        return values if self.columns_ else values.squeeze(-1)

    def _output_scale(self) -> Array:
        return self.target_scale_
