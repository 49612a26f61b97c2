"""scikit-learn's own checks, and its tools around the estimators."""

from dataclasses import replace

import numpy as np
import pytest
from generated_bags import make_bags
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import StackingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import estimator_checks_generator

from equipool.estimators import BagScaler, BagStatistics, SetClassifier, SetRegressor, as_bags

BAGS, LABELS = make_bags()
QUICK = {"aggregation": "mean", "max_iter": 20, "n_estimators": 1, "random_state": 0}
# Small enough to be checked in seconds; no setting that a check looks at differs from the default.
CHECKED = {"hidden_size": 8, "channels": 8, "n_estimators": 1, "learning_rate": 0.02}
# Two networks with dropout, of the equilibrium: as the defaults are, the checks that test results.
THOROUGH = (
    "check_sample_weight_equivalence_on_dense_data",
    "check_methods_subset_invariance",
    "check_methods_sample_order_invariance",
    "check_fit_idempotent",
    "check_estimators_pickle",
)


def checks(kind):
    rival = kind(aggregation="mean", max_iter=100, **CHECKED)
    for estimator, check in estimator_checks_generator(rival):
        yield pytest.param(estimator, check, id=f"{kind.__name__}-mean-{name_of(check)}")
    own = kind(**(CHECKED | {"n_estimators": 2, "max_iter": 4}))
    for estimator, check in estimator_checks_generator(own):
        if name_of(check) in THOROUGH:
            yield pytest.param(estimator, check, id=f"{kind.__name__}-{name_of(check)}")


def name_of(check):
    return getattr(check, "func", check).__name__


@pytest.mark.parametrize(
    ("estimator", "check"), [*checks(SetClassifier), *checks(SetRegressor)]
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")  # the checks provoke some
def test_check_estimator(estimator, check):
    check(estimator)


@pytest.mark.parametrize("transformer", [BagScaler(), BagStatistics()])
@pytest.mark.filterwarnings("ignore")
def test_check_transformers(transformer):
    for estimator, check in estimator_checks_generator(transformer):
        if name_of(check) != "check_array_api_input":  # skipped unless an environment variable
            check(estimator)


def test_the_whole_suite_is_run():
    """It would pass with a handful of checks for estimators that take no 2-D arrays."""
    for kind, least in ((SetClassifier, 60), (SetRegressor, 50)):
        names = [name_of(check) for _, check in estimator_checks_generator(kind())]
        assert len(names) >= least
        assert set(THOROUGH) <= set(names)


@pytest.mark.processes
def test_networks_in_two_processes():
    one, two = (
        SetClassifier(**(QUICK | {"n_estimators": 2}), n_jobs=jobs).fit(BAGS, LABELS)
        for jobs in (None, 2)
    )
    np.testing.assert_array_equal(one.predict_proba(BAGS), two.predict_proba(BAGS))


def test_pipelines_calibration_and_stacking():
    scaled = make_pipeline(BagScaler(), SetClassifier(**QUICK))
    statistics = make_pipeline(BagStatistics(), LogisticRegression())
    calibrated = CalibratedClassifierCV(SetClassifier(**QUICK), cv=2)
    stacked = StackingClassifier([("own", scaled), ("statistics", statistics)], cv=2)
    for model in (scaled, statistics, calibrated, stacked):
        model.fit(BAGS, LABELS)
        assert model.predict_proba(BAGS).shape == (60, 2)


def test_feature_names():
    bags = as_bags(BAGS)
    fitted = SetClassifier(**QUICK).fit(replace(bags, names=("a", "b", "c")), LABELS)
    assert fitted.feature_names_in_.tolist() == ["a", "b", "c"]
    assert fitted.predict(BAGS).shape == (60,)
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.predict(replace(bags, names=("c", "b", "a")))
    with pytest.raises(ValueError, match="X has 2 features, but SetClassifier is expecting 3"):
        fitted.predict([bag[:, :2] for bag in BAGS])
