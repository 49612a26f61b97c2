"""Estimators as files, as ONNX models, and the influence of elements."""

from copy import deepcopy
from functools import cache

import numpy as np
import pytest
from generated_bags import make_bags

from equipool import FixedSteps
from equipool.estimators import SetClassifier, SetRegressor, load, prediction

BAGS, LABELS = make_bags(least=1)
QUICK = {"hidden_size": 8, "channels": 4, "max_iter": 3, "n_estimators": 2, "random_state": 0}
COLUMNS = np.stack([LABELS, 1 - LABELS], axis=1)

CASES = {
    "two classes": (SetClassifier(**QUICK, class_weight={"a": 1.0, "b": 2.0}), list("ab")),
    "dates as classes": (
        SetClassifier(**QUICK, aggregation="mean"),
        np.array(["2024-01-01", "2024-01-02"], "M8[D]"),
    ),
    "many classes": (SetClassifier(**QUICK, aggregation="pna"), np.array([3, 5, 9])),
    "columns": (SetClassifier(**QUICK, aggregation="attention", clip=None), None),
    "numbers": (SetRegressor(**QUICK, aggregation="gated-attention"), np.array([1e5, -1e5])),
}


@cache
def trained(case):
    estimator, labels = CASES[case]
    y = COLUMNS if labels is None else np.asarray(labels)[np.arange(60) % len(labels)]
    return estimator.fit(BAGS, y)


def fitted(case):
    return deepcopy(trained(case))


PREDICTED = [*BAGS[:-1], 50 * BAGS[-1]]  # the last is far beyond where features are clipped


def outputs(estimator):
    return getattr(estimator, "predict_proba", estimator.predict)(PREDICTED)


@pytest.mark.parametrize("case", CASES)
def test_saved_and_loaded(case, tmp_path):
    estimator = fitted(case)
    estimator.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert type(loaded) is type(estimator)
    assert loaded.get_params() == estimator.get_params()
    np.testing.assert_array_equal(outputs(loaded), outputs(estimator))
    np.testing.assert_array_equal(loaded.predict(BAGS), estimator.predict(BAGS))
    assert (loaded.n_iter_, loaded.stopped_) == (3, ["max_iter"] * 2)
    if hasattr(estimator, "classes_"):
        assert loaded.classes_.dtype == estimator.classes_.dtype


def test_a_damaged_model_is_refused(tmp_path):
    fitted("columns").save(tmp_path / "model")
    file = bytearray((tmp_path / "model").read_bytes())
    file[-9] ^= 1
    (tmp_path / "model").write_bytes(file)
    with pytest.raises(ValueError, match="model is damaged: its checksum"):
        load(tmp_path / "model")


@pytest.mark.parametrize("case", ["two classes", "columns", "numbers"])
def test_influence_is_the_change_when_an_element_is_left_out(case):
    estimator = fitted(case)
    bag = BAGS[1] if len(BAGS[1]) > 1 else BAGS[2]
    found, none = estimator.influence([bag, bag[:0]])
    method = getattr(estimator, "decision_function", estimator.predict)
    without = method([np.delete(bag, i, axis=0) for i in range(len(bag))])
    np.testing.assert_allclose(found, method([bag]) - without, rtol=1e-6, atol=1e-9)
    assert len(none) == 0


@pytest.mark.filterwarnings("ignore:.*have not converged", "ignore:.*does not curve upwards")
def test_influence_by_newtons_method(monkeypatch):
    estimator = fitted("two classes")
    for network in estimator.networks_:
        network.aggregation.steps = FixedSteps(200)
    large = np.random.default_rng(0).normal(size=(30, 3))
    (exact,), (newton,) = (estimator.influence([large], method=m) for m in ("exact", "newton"))
    assert np.corrcoef(exact, newton)[0, 1] > 0.9
    np.testing.assert_array_equal(estimator.influence([large])[0], exact)
    monkeypatch.setattr(prediction, "NEWTON_FROM", 30)
    np.testing.assert_array_equal(estimator.influence([large])[0], newton)


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instant:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")
@pytest.mark.parametrize("case", ["two classes", "numbers"])
def test_onnx(case, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    estimator = fitted(case)
    for network in estimator.networks_:  # short, because the steps are unrolled
        if case == "two classes":
            network.aggregation.steps = FixedSteps(1)
    estimator.export_onnx(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    length = max(map(len, BAGS)) + 1
    x, mask = np.full((60, length, 3), 7, np.float32), np.zeros((60, length), bool)
    for row, bag in enumerate(PREDICTED):
        x[row, : len(bag)], mask[row, : len(bag)] = bag, True
    (y,) = session.run(["y"], {"x": x, "mask": mask})
    np.testing.assert_allclose(y, outputs(estimator), rtol=1e-4, atol=1e-5)
