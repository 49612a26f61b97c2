"""A page about a fitted estimator and one bag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted

from equipool.estimators.bags import Array
from equipool.estimators.base import SetEstimator
from equipool.explore.describe import Data, describe_network, numbers
from equipool.explore.page import page_with

MOST_ELEMENTS = 2000  # of a bag: the page draws and computes all of them


def model_page(
    estimator: SetEstimator, bag: Array, *, title: str = "A bag", names: Sequence[str] | None = None
) -> str:
    """A page in which the elements of a bag can be switched off, while the model's own network
    predicts in the page.

    Args:
        estimator: a fitted `SetClassifier` or `SetRegressor`.
        bag: its elements, `[n, d]`, as `predict` takes them.
        title: heading of the page.
        names: of the elements. Default: "element 1", "element 2", ...

    Raises:
        ValueError: if the bag is empty or too large, or if the page cannot compute the model.
    """
    return page_with(model_data(estimator, np.asarray(bag), title, names))


def model_data(
    estimator: SetEstimator, bag: Array, title: str, names: Sequence[str] | None = None
) -> Data:
    """The data of the page, as its script reads it."""
    check_is_fitted(estimator)
    features = estimator.n_features_in_
    if bag.ndim != 2 or bag.shape[1] != features:
        raise ValueError(f"bag has shape {list(bag.shape)}, expected [n, {features}]")
    if not 1 <= len(bag) <= MOST_ELEMENTS:
        raise ValueError(f"the bag has {len(bag):,} elements, expected 1 to {MOST_ELEMENTS:,}")
    if names is not None and len(names) != len(bag):
        raise ValueError(f"names has {len(names)} entries for {len(bag)} elements")
    scaling, unnamed = estimator.scaling_, [f"x{number}" for number in range(features)]
    components, explained = principal_components(scaling(bag))
    return {
        "kind": "model",
        "title": title,
        "networks": [
            describe_network(one.encoder, one.aggregation, one.head) for one in estimator.networks_
        ],
        "scaling": {
            "mean": _rounded(scaling.mean),
            "scale": _rounded(scaling.scale),
            "clip": scaling.clip if np.isfinite(scaling.clip) else None,
        },
        "output": _output(estimator),
        "features": [str(name) for name in getattr(estimator, "feature_names_in_", unnamed)],
        "elements": _rounded(bag),
        "names": list(names or (f"element {number}" for number in range(1, len(bag) + 1))),
        "components": _rounded(components),
        "explained": _rounded(explained),
    }


def principal_components(elements: Array, most: int = 2) -> tuple[Array, Array]:
    """The first principal components of elements `[n, d]`: coordinates `[n, m]`, and the share of
    the variance that each has, `[m]`; `m` is at most `most` and `d`.

    Example:
        >>> principal_components(np.array([[0.0, 1.0], [2.0, 1.0]]))[1]
        array([1., 0.])
    """
    centred = elements.astype(np.float64) - elements.mean(0, dtype=np.float64)
    _, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    squares = np.zeros(min(most, elements.shape[1]))
    found = min(len(squares), len(sizes))
    squares[:found] = sizes[:found] ** 2
    coordinates = np.zeros((len(elements), len(squares)))
    coordinates[:, :found] = centred @ directions[:found].T
    return coordinates, squares / max((sizes**2).sum(), np.finfo(float).tiny)


def _output(estimator: Any) -> Data:
    """What the networks' outputs mean."""
    labels = list(getattr(getattr(estimator, "table_schema_", None), "labels", ()))
    if is_classifier(estimator) and not estimator.multilabel_:
        names = [str(name) for name in estimator.classes_]
        return {"kind": "binary" if len(names) == 2 else "classes", "names": names}
    count = estimator.networks_[0].head[-1].out_features
    if len(labels) != count:
        labels = ["prediction"] if count == 1 else [f"column {n}" for n in range(1, count + 1)]
    if is_classifier(estimator):
        return {"kind": "columns", "names": labels}
    mean, scale = estimator.target_mean_, estimator.target_scale_
    return {"kind": "numbers", "names": labels, "mean": _rounded(mean), "scale": _rounded(scale)}


def _rounded(array: Array) -> Any:
    return numbers(torch.from_numpy(np.asarray(array, dtype=np.float64)))
