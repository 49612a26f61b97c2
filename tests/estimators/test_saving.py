"""Estimators as files, as ONNX models, and the influence of elements."""

import json

import numpy as np
import pytest
from generated_bags import make_bags
from safetensors.numpy import load_file, save_file

from equipool import Fixed
from equipool.estimators import SetClassifier, SetRegressor, explanation, load

BAGS, LABELS = make_bags(least=1)
QUICK = {"hidden_size": 8, "channels": 4, "max_steps": 3, "n_estimators": 2, "random_state": 0}
COLUMNS = np.stack([LABELS, 1 - LABELS], axis=1)

CASES = {
    "two classes": (SetClassifier(**QUICK, class_weight={"a": 1.0, "b": 2.0}), list("ab")),
    "many classes": (SetClassifier(**QUICK, aggregation="pna"), np.array([3, 5, 9])),
    "columns": (SetClassifier(**QUICK, aggregation="attention", clip=None), None),
    "numbers": (SetRegressor(**QUICK, aggregation="gated-attention"), np.array([1e5, -1e5])),
}


def fitted(case):
    estimator, labels = CASES[case]
    if labels is None:
        return estimator.fit(BAGS, COLUMNS)
    return estimator.fit(BAGS, np.asarray(labels)[np.arange(60) % len(labels)])


PREDICTED = [*BAGS[:-1], 50 * BAGS[-1]]  # the last is far beyond where features are clipped


def outputs(estimator):
    return getattr(estimator, "predict_proba", estimator.predict)(PREDICTED)


@pytest.mark.parametrize("case", CASES)
def test_saved_and_loaded(case, tmp_path):
    estimator = fitted(case)
    estimator.save(tmp_path / "model")
    assert {file.name for file in (tmp_path / "model").iterdir()} == {
        "model.json", "weights.safetensors",
    }  # fmt: skip
    loaded = load(tmp_path / "model")
    assert type(loaded) is type(estimator)
    assert loaded.get_params() == estimator.get_params()
    np.testing.assert_array_equal(outputs(loaded), outputs(estimator))
    np.testing.assert_array_equal(loaded.predict(BAGS), estimator.predict(BAGS))
    np.testing.assert_array_equal(loaded.history_[1]["loss"], estimator.history_[1]["loss"])
    if hasattr(estimator, "classes_"):
        assert loaded.classes_.dtype == estimator.classes_.dtype


def test_a_model_from_before_features_were_clipped(tmp_path):
    estimator = fitted("columns")
    estimator.save(tmp_path)
    model = json.loads((tmp_path / "model.json").read_text())
    tensors = tmp_path / "weights.safetensors"
    del model["parameters"]["clip"]
    (tmp_path / "model.json").write_text(json.dumps(model | {"format": 2}))
    save_file({k: v for k, v in load_file(tensors).items() if k != "scaling.clip"}, tensors)
    loaded = load(tmp_path)
    assert loaded.clip is None
    np.testing.assert_array_equal(outputs(loaded), outputs(estimator))


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"model\.json is missing"):
        load(tmp_path)
    fitted("columns").save(tmp_path)
    model = json.loads((tmp_path / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps(model | {"format": 99}))
    with pytest.raises(ValueError, match="has format 99"):
        load(tmp_path)
    (tmp_path / "model.json").write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        load(tmp_path)
    (tmp_path / "model.json").write_text(json.dumps(model))
    content = (tmp_path / "weights.safetensors").read_bytes()
    (tmp_path / "weights.safetensors").write_bytes(content[:-10])
    with pytest.raises(ValueError, match="damaged"):
        load(tmp_path)


@pytest.mark.parametrize("case", ["two classes", "columns", "numbers"])
def test_influence_is_the_change_when_an_element_is_left_out(case):
    estimator = fitted(case)
    bag = BAGS[1] if len(BAGS[1]) > 1 else BAGS[2]
    found = estimator.element_influence(bag)
    method = getattr(estimator, "decision_function", estimator.predict)
    without = method([np.delete(bag, i, axis=0) for i in range(len(bag))])
    np.testing.assert_allclose(found, method([bag]) - without, rtol=1e-6, atol=1e-9)
    assert len(estimator.element_influence(bag[:0])) == 0


@pytest.mark.filterwarnings("ignore:.*have not converged", "ignore:.*does not curve upwards")
def test_influence_by_newtons_method(monkeypatch):
    estimator = fitted("two classes")
    for network in estimator.networks_:
        network.aggregation.steps = Fixed(200)
    large = np.random.default_rng(0).normal(size=(30, 3))
    exact, newton = (estimator.element_influence(large, method=m) for m in ("exact", "newton"))
    assert np.corrcoef(exact, newton)[0, 1] > 0.9
    np.testing.assert_array_equal(estimator.element_influence(large), exact)
    monkeypatch.setattr(explanation, "NEWTON_FROM", 30)
    np.testing.assert_array_equal(estimator.element_influence(large), newton)
    with pytest.raises(ValueError, match="expected 'exact': only an equilibrium"):
        fitted("columns").element_influence(large, method="newton")


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instant:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")
@pytest.mark.parametrize("case", ["two classes", "numbers"])
def test_onnx(case, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    estimator = fitted(case)
    for network in estimator.networks_:  # short, because the steps are unrolled
        if case == "two classes":
            network.aggregation.steps = Fixed(1)
    estimator.export_onnx(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    length = max(map(len, BAGS)) + 1
    x, mask = np.full((60, length, 3), 7, np.float32), np.zeros((60, length), bool)
    for row, bag in enumerate(PREDICTED):
        x[row, : len(bag)], mask[row, : len(bag)] = bag, True
    (y,) = session.run(["y"], {"x": x, "mask": mask})
    np.testing.assert_allclose(y, outputs(estimator), rtol=1e-4, atol=1e-5)
