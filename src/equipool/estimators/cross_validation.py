"""Cross-validation of several methods on the same folds, and whether they differ."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import stats
from sklearn.base import clone, is_classifier
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.impute import SimpleImputer
from sklearn.metrics import get_scorer
from sklearn.model_selection import GroupKFold, KFold, StratifiedGroupKFold, StratifiedKFold
from sklearn.utils import check_random_state

from equipool.estimators.bags import Array
from equipool.estimators.tables import TableBags

TEST = "corrected resampled t-test (Nadeau and Bengio, 2003), two-sided"

CHANCE = {"roc_auc": 0.5, "r2": 0.0}
FOLDS = 3  # to estimate the score of a model

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
    if stratified and group is None:
        rarest = int(np.unique(y, return_counts=True)[1].min())
        if folds > rarest:
            raise ValueError(f"folds is {folds}, but the rarest class has {rarest} bags")
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


def estimate_score(estimator: Any, found: TableBags) -> tuple[float | None, str]:
    """How well a fitted estimator predicts bags that it has not seen, accuracy or R², and how that
    was measured: on the bags held out for early stopping, or out of fold with one network each."""
    metric = "accuracy" if is_classifier(estimator) else "R²"
    if estimator.score_ is not None:
        return estimator.score_, f"{metric} on held-out bags"
    y, weight = found.y, found.weight
    assert y is not None
    stratified = is_classifier(estimator) and y.ndim == 1
    rarest = np.unique(y, return_counts=True)[1].min() if stratified else len(y)
    if rarest < FOLDS:
        return None, f"not measured: {rarest} bags in a class are too few for {FOLDS} folds"
    single = clone(estimator).set_params(n_estimators=1, warm_start=False, verbose=0)
    scores = []
    for train, test in make_folds(y, None, folds=FOLDS, stratified=stratified, random_state=0):
        weights = None if weight is None else weight[train]
        fitted = single.fit(found.bags.take(train), y[train], sample_weight=weights)
        scores.append(fitted.score_on(found.bags.take(test), y[test]))
    return float(np.mean(scores)), f"{metric} out of fold, {FOLDS} folds of one network"


def corrected_t_test(differences: Sequence[float] | Array, test_share: float) -> float:
    r"""The p-value of the mean of differences between two methods over $n$ folds. Training sets
    overlap, so the variance of the mean is estimated as $(1/n + r) \, s^2$, where $r$ is the size
    of a test fold over that of its training set.

    Args:
        differences: of the scores, one per fold and repeat.
        test_share: r.

    Example:
        >>> round(corrected_t_test([0.1, 0.2, 0.0, 0.1], 0.25), 4)
        0.1817
    """
    values = np.asarray(differences, dtype=np.float64)
    count = len(values)
    if count < 2:
        return math.nan
    deviation = values.std(ddof=1)
    if deviation == 0:
        return 1.0 if values[0] == 0 else 0.0
    statistic = values.mean() / (deviation * math.sqrt(1 / count + test_share))
    return float(2 * stats.t.sf(abs(statistic), count - 1))


@dataclass(frozen=True)
class MethodScores:
    """Scores of a method: one per fold, repeat by repeat; larger is better."""

    name: str
    scores: tuple[float, ...]
    seconds: float
    p_value: float | None = None  # of the difference from the first method

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
        estimators: by name. The others are compared with the first.
        found: the bags. Missing numbers are NaN, and are replaced with the means of the training
            bags of each fold.
        folds: from `make_folds`.
        metric: a scorer of scikit-learn, for which larger is better.
        report: is called with name, fold and score.
    """
    share = float(np.mean([len(test) / len(train) for train, test in folds]))
    first: MethodScores | None = None
    for name, estimator in estimators.items():
        begin, scores = time.perf_counter(), []
        for number, fold in enumerate(folds):
            score = _score(estimator, found, fold, metric, number)
            scores.append(score)
            report(name, number, score)
        seconds = time.perf_counter() - begin
        p_value = None
        if first is not None:
            p_value = corrected_t_test(np.subtract(scores, first.scores), share)
        method = MethodScores(name, tuple(scores), seconds, p_value)
        _warn_below_chance(method, metric, found.y)
        first = first or method
        yield method


def _warn_below_chance(method: MethodScores, metric: str, y: Array | None) -> None:
    """Warn about a method that knows less than one which does not look at the bags."""
    if metric == "accuracy":
        counts = np.unique(np.asarray(y), return_counts=True)[1]
        chance, of = counts.max() / counts.sum(), "always predicting the most common class"
    elif metric in CHANCE:
        chance, of = CHANCE[metric], "a guess"
    else:
        return
    if method.mean < chance:
        warnings.warn(
            f"{method.name}: {metric} {method.mean:.3f} is below the {chance:.3f} of {of}: train "
            "longer (max_iter, --max-iter), or use other features",
            stacklevel=3,
        )


def _score(estimator: Any, found: TableBags, fold: Fold, metric: str, number: int) -> float:
    """Train on a fold's training bags and test on the others."""
    (train, test), y, weight = fold, found.y, found.weight
    assert y is not None
    if is_classifier(estimator) and len(np.unique(y[train])) < 2:
        raise ValueError(f"fold {number + 1} has training bags of one class only: use fewer folds")
    imputer = SimpleImputer(keep_empty_features=True).fit(found.bags.take(train).elements)
    filled = replace(found.bags, elements=imputer.transform(found.bags.elements))
    weights = None if weight is None else weight[train]
    fitted = clone(estimator).fit(filled.take(train), y[train], sample_weight=weights)
    scorer: Any = get_scorer(metric)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)  # reported below
        score = float(scorer(fitted, filled.take(test), y[test]))
    if not math.isfinite(score):
        raise ValueError(
            f"{metric} is not defined in fold {number + 1}, perhaps because its test bags have one "
            "class: use fewer folds or another metric"
        )
    return score
