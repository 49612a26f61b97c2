"""Scaled features of bags, and statistics of bags as plain features."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted

from equipool.estimators.bags import Array, BagReader, Bags
from equipool.settings import Range, check
from equipool.tables import listed

Positive = Annotated[float, Range(above=0)]
SAMPLE = 10_000  # values that tell whether a feature keeps its resolution
ROWS = 1 << 16  # at a time, so that no copy of all elements is made


@dataclass(frozen=True, eq=False)
class Scaling:
    r"""$(x - \mu) / \sigma$ in each feature, clipped to $[-c, c]$."""

    mean: Array  # [d]
    scale: Array  # [d]; 1 for a constant feature
    clip: float = np.inf

    def __call__(self, elements: Array, dtype: Any = np.float32) -> Array:
        """Scaled elements, computed in float64 and then rounded."""
        scaled = np.empty(elements.shape, dtype)
        for start in range(0, len(elements), ROWS):
            rows = slice(start, start + ROWS)
            standardized = (elements[rows] - self.mean) / self.scale
            scaled[rows] = np.clip(standardized, -self.clip, self.clip)
        return scaled


def measure_scaling(bags: Bags, weights: Array | None = None, clip: float | None = None) -> Scaling:
    """Mean and standard deviation of the elements, every bag counting alike, or by its weight:
    without that a few large bags would decide."""
    sizes = bags.sizes
    weights = np.ones(len(bags)) if weights is None else weights
    of_elements = np.repeat(weights / np.maximum(sizes, 1), sizes)
    total = max(of_elements.sum(), np.finfo(float).tiny)
    blocks = [slice(start, start + ROWS) for start in range(0, len(of_elements), ROWS)]
    elements = bags.elements
    zero = np.zeros(bags.num_features)
    mean = sum((of_elements[rows] @ elements[rows] for rows in blocks), zero) / total
    squares = (of_elements[rows] @ (elements[rows] - mean) ** 2 for rows in blocks)
    deviation = np.sqrt(sum(squares, zero) / total)
    rounding = 4 * np.finfo(elements.dtype).eps * np.abs(mean)
    scale = np.where(deviation <= rounding, 1.0, deviation)
    return Scaling(mean, scale, np.inf if clip is None else float(clip))


def warn_of_lost_resolution(bags: Bags, scaling: Scaling, dtype: Any) -> None:
    """Warn about features whose different values become equal: before, because they are float32, or
    when they are scaled and rounded to a dtype."""
    lost = []
    for number, name in enumerate(bags.names or range(bags.num_features)):
        values = bags.elements[:, number]
        low, high = values.min(initial=np.inf), values.max(initial=-np.inf)
        step = np.spacing(max(abs(low), abs(high)))
        if low < high and step > (high - low) / 100:
            lost.append(f"{name} (steps of {step:g} in {high - low:g})")
            continue
        column = Scaling(scaling.mean[[number]], scaling.scale[[number]])
        if whole := high - low > 2 / np.finfo(dtype).eps and not (values % 1).any():
            distinct = np.unique(values)
        else:  # close fractions may become equal, but not most of them
            distinct = np.unique(values[:: -(-len(values) // SAMPLE) or 1])
        left = len(np.unique(column(distinct[:, None], dtype)))
        if left < (len(distinct) if whole else len(distinct) / 2):
            lost.append(f"{name} ({len(distinct):,} values become {left:,})")
    if lost:
        warnings.warn(
            f"features whose values {bags.elements.dtype} input or {np.dtype(dtype)} training "
            f"cannot tell apart: {listed(lost)}. Pass float64, subtract an offset first, leave out "
            "marks of missing values, such as 0 among dates, or split them into two features",
            stacklevel=3,
        )


class BagScaler(OneToOneFeatureMixin, TransformerMixin, BagReader):
    r"""Scales each feature to mean 0 and standard deviation 1 over the training bags, in which
    every bag counts alike, however many elements it has:

    $$x \mapsto \frac{x - \mu}{\sigma}, \qquad
    \mu = \frac{1}{B} \sum_b \frac{1}{n_b} \sum_{i \in b} x_i.$$

    `SetClassifier` and `SetRegressor` do this themselves, with `clip=3`. Constant features become
    0, and bags may be empty. Bags of one element each give a 2-D array, others a sequence of
    arrays.

    Args:
        clip: clip scaled features to `[-clip, clip]`; None for no limit.

    Example:
        >>> scaler = BagScaler().fit([[[0.0], [2.0]], [[1.0]]])
        >>> scaler.transform([[[1.0]], []])[0]
        array([[0.]])
    """

    def __init__(self, clip: float | None = None) -> None:
        self.clip = clip

    def fit(self, X: Any, y: Any = None) -> BagScaler:
        """Measure the features of the bags."""
        check("clip", self.clip, Positive | None)
        self.scaling_ = measure_scaling(self._read(X, reset=True), clip=self.clip)
        return self

    def transform(self, X: Any) -> Array | Bags:
        """The bags with scaled features."""
        check_is_fitted(self)
        bags = self._read(X, reset=False)
        elements = self.scaling_(bags.elements, bags.elements.dtype)
        one_each = bool((bags.sizes == 1).all())  # the same bags as a plain array
        return elements if one_each else Bags(elements, bags.ptr, bags.names)


Statistic = Callable[[Bags], Array]


def _mean(bags: Bags) -> Array:
    return _reduce(np.add, bags, bags.elements) / np.maximum(bags.sizes, 1)[:, None]


def _deviation(bags: Bags) -> Array:
    centred = bags.elements - np.repeat(_mean(bags), bags.sizes, axis=0)
    return np.sqrt(_reduce(np.add, bags, centred**2) / np.maximum(bags.sizes, 1)[:, None])


def _reduce(operation: Any, bags: Bags, values: Array) -> Array:
    """The operation over the elements of each bag; 0 for an empty bag."""
    found = np.zeros((len(bags), values.shape[1]), dtype=values.dtype)
    occupied = bags.sizes > 0
    if occupied.any():  # an empty bag between two others has no rows of its own
        found[occupied] = operation.reduceat(values, bags.ptr[:-1][occupied], axis=0)
    return found


STATISTICS: dict[str, Statistic] = {
    "mean": _mean,
    "min": lambda bags: _reduce(np.minimum, bags, bags.elements),
    "max": lambda bags: _reduce(np.maximum, bags, bags.elements),
    "std": _deviation,
    "sum": lambda bags: _reduce(np.add, bags, bags.elements),
    "count": lambda bags: bags.sizes[:, None].astype(bags.elements.dtype),
}


class BagStatistics(TransformerMixin, BagReader):
    """Turns each bag into one row of plain features: statistics of its elements. Followed by any
    classifier of scikit-learn, this is the baseline to beat.

    Args:
        statistics: names among `"mean"`, `"min"`, `"max"`, `"std"`, `"sum"` (one number per
            feature) and `"count"` (the number of elements). All are 0 for an empty bag.

    Shapes:
        `B` bags of `d` features -> `[B, d * statistics]`, or one column for `"count"`.

    Example:
        >>> BagStatistics(("mean", "count")).fit_transform([[[1.0, 5.0], [3.0, 7.0]], []])
        array([[2., 6., 2.],
               [0., 0., 0.]])
    """

    def __init__(
        self, statistics: Sequence[str] = ("mean", "min", "max", "std", "count")
    ) -> None:  # fmt: skip
        self.statistics = statistics

    def fit(self, X: Any, y: Any = None) -> BagStatistics:
        """Check the bags; nothing is learned but the number of features."""
        unknown = [name for name in self.statistics if name not in STATISTICS]
        if unknown or not len(self.statistics):
            raise ValueError(
                f"statistics is {list(self.statistics)}, expected one or more of {list(STATISTICS)}"
            )
        self._read(X, reset=True)
        return self

    def transform(self, X: Any) -> Array:
        """The statistics of each bag."""
        check_is_fitted(self, "n_features_in_")
        bags = self._read(X, reset=False)
        return np.concatenate([STATISTICS[name](bags) for name in self.statistics], axis=1)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """`mean(dollars)` and the like, and `count`."""
        check_is_fitted(self, "n_features_in_")
        features = _check_feature_names_in(self, input_features)
        names = [
            [name] if name == "count" else [f"{name}({feature})" for feature in features]
            for name in self.statistics
        ]
        return np.array([one for some in names for one in some], dtype=object)
