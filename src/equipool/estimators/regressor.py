"""A regressor of bags."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils import check_array
from sklearn.utils.validation import column_or_1d
from torch import Tensor

from equipool.estimators.bags import Array
from equipool.estimators.base import SetEstimator, Targets


class SetRegressor(RegressorMixin, SetEstimator):
    """A regressor of bags of vectors, with the conventions of scikit-learn. Minimises the squared
    error; targets are scaled by those of the training bags.

    Each element is encoded by a small network, each bag is pooled by minimising a learned energy
    (`aggregation="equilibrium"`) or by one of its rivals, and a linear map reads the pooled vector.
    Features are first scaled by the training bags. The defaults are meant for 60 to 100,000 bags of
    1 to 1,000,000 elements.

    Args:
        aggregation: how a bag is pooled: a name in `equipool.baselines.AGGREGATIONS`, or a function
            of two sizes that makes a module with the layer's call.
        clip: clip scaled features to this many standard deviations; None for no limit. A few
            extreme values would otherwise decide what a network learns from few bags.
        hidden_size: size of an encoded element; 0 to pool the scaled features themselves.
        channels: size of a pooled bag.
        n_estimators: number of networks, whose outputs are averaged. `"auto"`: 3 below 500 training
            bags, else 1.
        max_iter: largest number of training steps of each network. `"auto"`: enough to visit each
            bag 30 times, at least 150 and at most 4,000.
        batch_size: bags per training step. `"auto"`: 8 to 64, so that a step has about 8,000
            elements.
        max_seconds: stop training each network after this many seconds.
        learning_rate: learning rate of Adam, which rises for a few steps and falls to 0.
        weight_decay: decoupled weight decay.
        dropout: dropout rate. `"auto"`: 0.3 below 500 training bags, else 0.
        early_stopping: stop when the loss of held-out bags no longer falls, and keep the best
            weights. `"auto"`: from 500 training bags on.
        validation_fraction: share of the training bags that is held out for that.
        n_iter_no_change: evaluations without improvement after which training stops; there are up
            to 20.
        max_elements: largest number of elements of a bag in one training step. From a larger bag a
            new sample is drawn for each step. Predictions always use whole bags.
        warm_start: continue from the weights of the last `fit`, with the scaling of the first.
        device: `"auto"` for a GPU if there is one, `"cpu"` or `"cuda"`.
        n_jobs: number of processes that train networks in parallel. Each uses one thread.
        random_state: seed. The same seed gives the same numbers on the same machine.
        verbose: 1 prints the progress of training.

    Attributes:
        networks_: the trained `BagNetwork`s, on the CPU.
        history_: for each network `loss` per step; with early stopping also `validation_loss` and
            the `step` of each evaluation. Not saved.
        n_iter_: the number of steps, of the network that took the most.
        stopped_: for each network, the parameter that ended its training: `"max_iter"`,
            `"n_iter_no_change"` or `"max_seconds"`.
        scaling_: mean, scale and clipping of the features.
        n_features_in_: number of features.
        feature_names_in_: their names, if X had some.

    Example:
        >>> import numpy as np
        >>> random = np.random.default_rng(0)
        >>> bags = [random.normal(size=(size, 2)) for size in random.integers(1, 6, size=40)]
        >>> regressor = SetRegressor(max_iter=30, random_state=0)
        >>> regressor.fit(bags, [bag.sum() for bag in bags]).predict(bags).shape
        (40,)
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _make_targets(self, y: Any, weights: Array, again: bool) -> Targets:
        values = np.asarray(y)
        columns = values.ndim == 2 and values.shape[1] > 1
        values = values if columns else column_or_1d(y, warn=True)[:, None]
        values = check_array(
            values, dtype=np.float64, ensure_all_finite="allow-nan", input_name="y"
        )
        missing = np.isnan(values)
        if missing.any() and not columns:
            raise ValueError("Input y contains NaN.")
        of_targets = np.where(missing, 0.0, weights[:, None])
        total = of_targets.sum(0)
        if not total.all():
            raise ValueError("y has a column without any value")
        values = np.where(missing, 0.0, values)
        if not again:
            self.columns_ = columns
            # In units of the largest, because squares of 1e160 and of 1e-300 are no numbers.
            unit = np.abs(values).max(0)
            unit = np.where(unit > 0, unit, 1.0)
            mean = (of_targets * (values / unit)).sum(0) / total
            deviation = np.sqrt((of_targets * (values / unit - mean) ** 2).sum(0) / total)
            self.target_mean_ = unit * mean
            self.target_scale_ = np.where(deviation > 0, unit * deviation, 1.0)
        elif columns != self.columns_ or len(self.target_mean_) != values.shape[1]:
            raise ValueError(f"y has {values.shape[1]} columns, unlike y of the first fit")
        scaled = (values - self.target_mean_) / self.target_scale_
        return Targets("numbers", scaled, of_targets / of_targets.mean(), values.shape[1])

    def predict(self, X: Any) -> Array:
        """A number for each bag `[B]`, or for each bag and column `[B, columns]`."""
        values = self._outputs(X) * self.target_scale_ + self.target_mean_
        return values if self.columns_ else values[:, 0]

    def _finish(self, outputs: Tensor) -> Tensor:
        scale, mean = (
            torch.tensor(one).to(outputs) for one in (self.target_scale_, self.target_mean_)
        )
        if not (scale.isfinite().all() and mean.isfinite().all() and scale.all()):
            raise ValueError(f"y has numbers that {outputs.dtype} cannot hold: scale them first")
        values = outputs * scale + mean
        return values if self.columns_ else values.squeeze(-1)
