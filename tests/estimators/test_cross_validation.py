"""Folds, and scores of several methods on the same folds."""

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin

from equipool.estimators.bags import Bags
from equipool.estimators.cross_validation import cross_validate, make_folds
from equipool.estimators.tables import TableBags

Y = np.arange(40) % 4 == 0  # ten of forty
GROUP = np.array([str(number // 3) for number in range(40)])


@pytest.mark.parametrize("group", [None, GROUP])
@pytest.mark.parametrize("stratified", [False, True])
def test_each_bag_is_in_one_test_fold_of_a_repeat(group, stratified):
    folds = make_folds(Y, group, folds=5, repeats=3, stratified=stratified, random_state=0)
    assert len(folds) == 15
    for repeat in range(3):
        tests = [test for _, test in folds[5 * repeat : 5 * repeat + 5]]
        assert sorted(np.concatenate(tests)) == list(range(40))
    for train, test in folds:
        assert not set(train) & set(test)
        assert len(train) + len(test) == 40
        if group is not None:
            assert not set(group[train]) & set(group[test])
        elif stratified:
            assert Y[test].sum() == 2
    assert len({test.tobytes() for _, test in folds}) > 5, "another division in each repeat"


class Threshold(ClassifierMixin, BaseEstimator):
    """Compares the mean of a bag's first feature with a number."""

    seen = []  # noqa: RUF012, all elements that were fitted and predicted

    def __init__(self, at=0.0):
        self.at = at

    def fit(self, X, y, sample_weight=None):
        self.classes_ = np.unique(y)
        Threshold.seen.append(X.elements)
        return self

    def predict(self, X):
        Threshold.seen.append(X.elements)
        return np.array([int(bag[:, 0].mean() > self.at) for bag in X])


def bags_of(values, y):
    elements = np.array(values, np.float32)[:, None]
    return TableBags(
        [str(number) for number in range(len(y))],
        Bags(elements, np.arange(len(y) + 1), ("x",)), np.arange(len(y)), np.array(y),
    )  # fmt: skip


def test_methods_are_scored_on_the_same_folds():
    y = np.arange(20) % 2
    found = bags_of(np.where(y == 1, 1.0, -1.0), y)
    folds = make_folds(y, None, folds=4, repeats=2, stratified=True, random_state=0)
    methods = {"right": Threshold(), "guess": Threshold(5.0)}
    right, guess = cross_validate(methods, found, folds, "accuracy")
    assert right.scores == (1.0,) * 8
    assert guess.mean == pytest.approx(0.5, abs=0.05)
    found = bags_of(np.where(y == 1, -1.0, 1.0), y)
    with pytest.warns(UserWarning, match="right: accuracy 0.000 is below the 0.500 of a guess"):
        list(cross_validate(methods, found, folds, "accuracy"))


def test_missing_numbers_become_the_mean_of_the_training_bags():
    y = np.arange(6) % 2
    found = bags_of([1.0, np.nan, 2.0, 3.0, np.nan, 9.0], y)
    fold = (np.array([0, 1, 2, 3]), np.array([4, 5]))
    Threshold.seen.clear()
    list(cross_validate({"one": Threshold()}, found, [fold, fold], "accuracy"))
    train, test, *_ = Threshold.seen
    assert list(train[:, 0]) == [1, 2, 2, 3]  # 2 is the mean of 1, 2 and 3; 9 is not seen
    assert list(test[:, 0]) == [2, 9]


def test_folds_in_which_nothing_can_be_measured_are_named():
    y = np.array([0, 0, 0, 1, 1, 1])
    found = bags_of(np.zeros(6), y)
    with pytest.raises(ValueError, match="fold 1 has training bags of one class only"):
        list(cross_validate({"a": Threshold()}, found, [(np.arange(3), np.arange(3, 6))], "f1"))
