"""A classifier of bags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d
from torch import Tensor

from equipool.estimators.bags import Array
from equipool.estimators.base import SetEstimator, Targets


@dataclass(eq=False, repr=False)
class SetClassifier(ClassifierMixin, SetEstimator):
    """A classifier of bags of vectors, with the conventions of scikit-learn.

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
        class_weight: weights of the classes, as in scikit-learn: a dict, `"balanced"` or None.
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
        classes_: the labels; the numbers of the columns if y has several.

    Example:
        >>> import numpy as np
        >>> random = np.random.default_rng(0)
        >>> bags = [random.normal(size=(size, 2)) for size in random.integers(1, 6, size=40)]
        >>> labels = ["large" if len(bag) > 3 else "small" for bag in bags]
        >>> classifier = SetClassifier(max_iter=30, random_state=0).fit(bags, labels)
        >>> classifier.predict_proba(bags[:2]).shape
        (2, 2)
    """

    class_weight: Mapping[Any, float] | str | None = field(default=None, kw_only=True)

    classes_: Array = field(init=False)
    multilabel_: bool = field(init=False)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def _make_targets(self, y: Any, weights: Array, again: bool) -> Targets:
        values = y if hasattr(y, "ndim") else np.asarray(y)
        if values.ndim == 2 and values.shape[1] > 1:
            return self._columns(np.asarray(values, dtype=np.float64), weights, again)
        labels = column_or_1d(y, warn=True)
        check_classification_targets(labels)
        classes = np.unique(labels)
        if again:
            unknown = np.setdiff1d(classes, self.classes_)
            if self.multilabel_ or len(unknown):
                raise ValueError(f"y has classes that the first fit lacked: {unknown.tolist()}")
        elif len(classes) == 1:
            raise ValueError(
                f"y has one class, {classes.tolist()[0]!r}: a classifier needs two classes or more"
            )
        else:
            self.classes_, self.multilabel_ = classes, False
        codes = np.searchsorted(self.classes_, labels)[:, None]
        weights = weights * compute_sample_weight(self.class_weight, labels)
        if not weights.any():
            raise ValueError("class_weight is zero for all bags, expected some above zero")
        weights = (weights / weights.mean())[:, None]
        if len(self.classes_) == 2:
            return Targets("binary", codes, weights, 1)
        return Targets("classes", codes, weights, len(self.classes_))

    def _columns(self, values: Array, weights: Array, again: bool) -> Targets:
        """Several columns of 0 and 1, NaN where missing."""
        known = ~np.isnan(values)
        if not np.isin(values[known], (0, 1)).all():
            raise ValueError(
                "y has several columns with values other than 0, 1 and NaN (missing), expected "
                "only those"
            )
        if again and (not self.multilabel_ or len(self.classes_) != values.shape[1]):
            raise ValueError(f"y has {values.shape[1]} columns, unlike y of the first fit")
        self.classes_, self.multilabel_ = np.arange(values.shape[1]), True
        of_targets = known * weights[:, None]
        for column, rows in enumerate(known.T):
            if rows.any():
                labels = values[rows, column]
                of_targets[rows, column] *= compute_sample_weight(self.class_weight, labels)
        if not of_targets.any():
            raise ValueError("y has no label, expected at least one that is not NaN")
        return Targets(
            "binary", np.where(known, values, 0), of_targets / of_targets.mean(), values.shape[1]
        )

    def decision_function(self, X: Any) -> Array:
        """Logits: `[B]` for two classes, `[B, classes]` for more, `[B, columns]` for several
        columns."""
        outputs = self._outputs(X)
        two = not self.multilabel_ and len(self.classes_) == 2
        return outputs[:, 0] if two else outputs

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class `[B, classes]`, or of 1 in each column `[B, columns]`."""
        return self._finish(torch.from_numpy(self._outputs(X))).numpy()

    def predict(self, X: Any) -> Array:
        """The most likely class `[B]`, or 0 and 1 in each column `[B, columns]`."""
        logits = self.decision_function(X)
        if self.multilabel_:
            return (logits > 0).astype(int)
        return self.classes_[logits.argmax(1) if logits.ndim == 2 else (logits > 0).astype(int)]

    def _finish(self, outputs: Tensor) -> Tensor:
        if self.multilabel_:
            return torch.sigmoid(outputs)
        if len(self.classes_) == 2:
            outputs = torch.cat([torch.zeros_like(outputs), outputs], dim=1)
        return torch.softmax(outputs, dim=1)
