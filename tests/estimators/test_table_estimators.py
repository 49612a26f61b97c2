"""Estimators on tables: the same as on bags, alone, in any batch and after loading."""

import numpy as np
import pandas
import pyarrow as pa
import pytest

from equipool.estimators import (
    SetClassifier,
    SetRegressor,
    TableError,
    load,
    make_bags,
    write_table,
)
from equipool.estimators.tables import read_table

QUICK = {"max_iter": 5, "hidden_size": 8, "channels": 4, "device": "cpu", "random_state": 0}
COLUMNS = {"bag": "bag", "label": "label"}


@pytest.fixture(scope="module")
def frame():
    """Bags with a category and missing numbers, their rows in random order."""
    draw = np.random.default_rng(0)
    bags, labels = make_bags(30, num_features=2, max_size=9, random_state=0)
    sizes = [len(bag) for bag in bags]
    made = pandas.DataFrame(np.concatenate(bags), columns=["x", "z"])
    made["bag"] = np.repeat([f"b{number}" for number in range(30)], sizes)
    made["label"] = np.repeat(np.where(labels == 1, "ill", "well"), sizes)
    made["score"] = np.repeat(draw.normal(size=30), sizes)
    made["kind"] = draw.choice(["u", "v", "w"], len(made))
    made["x"] = made["x"].mask(draw.random(len(made)) < 0.2)
    return made.iloc[draw.permutation(len(made))].reset_index(drop=True)


@pytest.fixture(scope="module")
def fitted(frame):
    model = SetClassifier("mean", **QUICK)
    return model.fit_table(frame, **COLUMNS, exclude=["score"], missing="mean")


def test_a_table_is_fitted_as_its_bags_to_the_bit(tmp_path):
    bags, labels = make_bags(20, max_size=9, random_state=1)
    bags = [bag.astype(np.float64) for bag in bags]
    by_bags = SetClassifier("mean", **QUICK).fit(bags, labels).predict_proba(bags)
    for ending in (".csv", ".csv.gz", ".parquet"):
        path = tmp_path / f"bags{ending}"
        write_table(path, bags, labels)
        model = SetClassifier("mean", **QUICK).fit_table(path, **COLUMNS)
        predicted = model.predict_table(path)
        found = np.stack([predicted[f"probability of {name}"] for name in (0, 1)], axis=1)
        assert np.array_equal(found, by_bags)


def test_influence_has_a_row_for_each_row_the_strongest_first(frame, fitted):
    bag = frame["bag"].iloc[0]
    found = fitted.influence_table(frame, bags=[bag]).to_pandas()
    assert (np.diff(np.abs(found["influence"])) <= 0).all()
    own = read_table(frame[frame["bag"] == bag], fitted.table_schema_)
    (expected,) = fitted.influence(own.bags)
    np.testing.assert_allclose(found.sort_values("row")["influence"], expected, rtol=1e-6)
    assert sorted(found["row"]) == list(frame.index[frame["bag"] == bag])
    assert len(fitted.influence_table(frame)) == len(frame)


def test_a_loaded_model_reads_tables_as_the_trained_one(frame, fitted, tmp_path):
    fitted.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.table_schema_ == fitted.table_schema_
    assert loaded.predict_table(frame).equals(fitted.predict_table(frame))


def test_regression_and_several_labels(frame):
    frame = frame.assign(other=1.0 - frame["score"], half=(frame["label"] == "ill").astype(float))
    for kind, label, expected in (
        (SetRegressor, "score", ["predicted_score"]),
        (SetRegressor, ["score", "other"], ["predicted_score", "predicted_other"]),
        (SetClassifier, ["half", "half2"], ["probability of half", "probability of half2"]),
    ):
        table = frame.assign(half2=1.0 - frame["half"])
        model = kind("mean", **QUICK).fit_table(table, bag="bag", label=label, features=["z"])
        assert model.predict_table(table).column_names == ["bag", *expected]
    assert model.influence_table(table).column_names[2:] == [
        "influence on half",
        "influence on half2",
    ]


def test_labels_of_the_wrong_kind_are_named(frame):
    one, text = frame.assign(label="ill"), frame.assign(label=frame["label"].replace("well", "0"))
    with pytest.raises(ValueError, match="y has one class, 'ill': a classifier needs two"):
        SetClassifier("mean", **QUICK).fit_table(one, **COLUMNS, features=["z"])
    with pytest.raises(TableError, match="column 'label' has text such as 'ill': a regressor"):
        SetRegressor("mean", **QUICK).fit_table(text, **COLUMNS, features=["z"])


def test_a_model_that_saw_no_table_predicts_none(frame, fitted):
    bags, labels = make_bags(12, max_size=9, random_state=1)
    model = SetClassifier("mean", **QUICK).fit(bags, labels)
    with pytest.raises(ValueError, match="the model was not trained on a table"):
        model.predict_table(frame)
    table = pa.table({"bag": [0, 1], "label": [0, 1], "x": [0.0, 1.0]})
    model = SetClassifier("mean", **QUICK).fit_table(table, **COLUMNS).fit(bags, labels)
    assert not hasattr(model, "table_schema_")


def test_generated_bags_are_those_of_their_seed(tmp_path):
    one, again = make_bags(9, random_state=4), make_bags(9, random_state=4)
    assert all(np.array_equal(a, b) for a, b in zip(one[0], again[0], strict=True))
    assert np.array_equal(one[1], again[1])
    with pytest.raises(ValueError, match="a bag is empty"):
        write_table(tmp_path / "bags.csv", [np.zeros((0, 2))], [1])


def test_a_regressor_reads_targets_of_any_size_from_a_table():
    table = {"b": [0, 1, 2], "y": ["1e300", "1e-300", "-7"], "x": [1.0, 2.0, 4.0]}
    model = SetRegressor("mean", max_iter=1, hidden_size=2, n_estimators=1)
    assert np.isfinite(model.fit_table(table, bag="b", label="y").target_mean_).all()
    with pytest.raises(TableError, match="'inf': a regressor needs numbers"):
        model.fit_table(table | {"y": ["1", "inf", "2"]}, bag="b", label="y")
