"""Bags as an argument of an estimator: their features must be those it was fitted with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_feature_names_in, validate_data

from equipool.estimators.bags import Array, Bags, read_bags


class BagReader(BaseEstimator):
    """The base of all estimators and transformers of bags."""

    n_features_in_: int

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def _read(self, X: Any, reset: bool) -> Bags:
        """The bags, whose features must be those of the training unless `reset`."""
        bags = read_bags(X)
        if _is_table(X):
            validate_data(self, X, reset=reset, skip_check_array=True)
        elif reset:
            self.n_features_in_ = bags.num_features
            self.__dict__.pop("feature_names_in_", None)
            if bags.names is not None:
                self.feature_names_in_ = np.array(bags.names, dtype=object)
        elif bags.names not in (None, tuple(getattr(self, "feature_names_in_", bags.names or ()))):
            raise ValueError(
                f"The feature names should match those that were passed during fit: found "
                f"{list(bags.names or ())}, expected {list(self.feature_names_in_)}"
            )
        if len(bags) == 0:
            raise ValueError(
                "Found array with 0 sample(s) (shape=(0,)) while a minimum of 1 is required."
            )
        if bags.num_features != self.n_features_in_:
            raise ValueError(
                f"X has {bags.num_features} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input"
            )
        return bags

    def _feature_names(self, given: Any = None) -> Array:
        """The names of the features: those given, those of the training, or `x0`, `x1`, ..."""
        return np.asarray(_check_feature_names_in(self, given), dtype=object)


def _is_table(X: Any) -> bool:
    """Whether X is a 2-D array or data frame, of which scikit-learn knows shape and names."""
    shape = getattr(X, "shape", None)
    return not isinstance(X, torch.Tensor) and shape is not None and len(shape) == 2
