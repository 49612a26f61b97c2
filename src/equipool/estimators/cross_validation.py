"""Cross-validation of several methods on the same folds."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.impute import SimpleImputer
from sklearn.metrics import get_scorer
from sklearn.model_selection import GroupKFold, KFold, StratifiedGroupKFold, StratifiedKFold
from sklearn.utils import check_random_state

from equipool.estimators.bags import Array
from equipool.estimators.tables import TableBags

Fold = tuple[Array, Array]  # positions of the training bags and of the test bags


def make_folds(
    y: Array, group: Array | None, *, folds: int, repeats: int = 1, stratified: bool = False,
    random_state: Any = None,
) -> list[Fold]:  # fmt: skip
    """Shuffled folds of bags, each bag in one test fold per repeat. All bags of a group are in the
    same fold. With `stratified`, classes are spread evenly over the folds.

    Example:
        >>> folds = make_folds(np.array([0, 0, 1, 1]), None, folds=2, stratified=True)
        >>> [len(test) for _, test in folds]
        [2, 2]
    """
    kinds: dict[tuple[bool, bool], Any] = {
        (False, False): KFold, (True, False): StratifiedKFold,
        (False, True): GroupKFold, (True, True): StratifiedGroupKFold,
    }  # fmt: skip
    kind = kinds[stratified, group is not None]
    seeds = check_random_state(random_state).randint(2**31 - 1, size=repeats)
    found: list[Fold] = []
    for seed in seeds:
        splitter = kind(folds, shuffle=True, random_state=int(seed))
        found += splitter.split(np.zeros(len(y)), y, group)
    return found


@dataclass(frozen=True)
class MethodScores:
    """Scores of a method: one per fold, repeat by repeat; larger is better."""

    name: str
    scores: tuple[float, ...]
    seconds: float

    @property
    def mean(self) -> float:
        return float(np.mean(self.scores))

    @property
    def deviation(self) -> float:
        """Standard deviation over all folds."""
        return float(np.std(self.scores, ddof=1))


def cross_validate(
    estimators: dict[str, Any], found: TableBags, folds: Sequence[Fold], metric: str,
    report: Callable[[str, int, float], None] = lambda name, fold, score: None,
) -> Iterator[MethodScores]:  # fmt: skip
    """Train and test each estimator on the same folds.

    Args:
        estimators: by name.
        found: the bags. Missing numbers are NaN, and are replaced with the means of the training
            bags of each fold.
        folds: from `make_folds`.
        metric: a scorer of scikit-learn, for which larger is better.
        report: is called with name, fold and score.
    """
    for name, estimator in estimators.items():
        begin, scores = time.perf_counter(), []
        for number, fold in enumerate(folds):
            score = _score(estimator, found, fold, metric, number)
            scores.append(score)
            report(name, number, score)
        method = MethodScores(name, tuple(scores), time.perf_counter() - begin)
        _warn_below_chance(method, metric, np.asarray(found.y))
        yield method


def _warn_below_chance(method: MethodScores, metric: str, y: Array) -> None:
    """Warn about a method that knows less than one which does not look at the bags."""
    common = np.unique(y, return_counts=True)[1].max() / len(y)
    chance = {"roc_auc": 0.5, "r2": 0.0, "accuracy": common}.get(metric, -math.inf)
    if method.mean < chance:
        warnings.warn(
            f"{method.name}: {metric} {method.mean:.3f} is below the {chance:.3f} of a guess: "
            "train longer (max_iter, --max-iter), or use other features",
            stacklevel=3,
        )


def _score(estimator: Any, found: TableBags, fold: Fold, metric: str, number: int) -> float:
    """Train on a fold's training bags and test on the others."""
    (train, test), y, weight = fold, found.y, found.weight
    assert y is not None
    if is_classifier(estimator) and len(np.unique(y[train])) < 2:
        raise ValueError(f"fold {number + 1} has training bags of one class only: use fewer folds")
    imputer = SimpleImputer(keep_empty_features=True).fit(found.bags[train].elements)
    filled = replace(found.bags, elements=imputer.transform(found.bags.elements))
    weights = None if weight is None else weight[train]
    fitted = clone(estimator).fit(filled[train], y[train], sample_weight=weights)
    scorer: Any = get_scorer(metric)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)  # reported below
        score = float(scorer(fitted, filled[test], y[test]))
    if not math.isfinite(score):
        raise ValueError(
            f"{metric} is not defined in fold {number + 1}, perhaps because its test bags have one "
            "class: use fewer folds or another metric"
        )
    return score
