"""The page of a fitted estimator predicts what the estimator predicts, element by element."""

from functools import cache

import numpy as np
import pytest
from explorer_engine import close, needs_node, run_engine

from equipool.explore.page import page_data

pytest.importorskip("sklearn")

from equipool.estimators import SetClassifier, SetRegressor, make_bags
from equipool.explore.model import MOST_ELEMENTS, model_data, model_page, principal_components

FAST = {
    "max_iter": 10, "channels": 8, "hidden_size": 8, "n_estimators": 1, "random_state": 0,
    "device": "cpu",
}  # fmt: skip


@cache
def fitted(kind, **settings):
    """An estimator with labels of a kind, and a bag; fitted once."""
    bags, labels = make_bags(40, num_features=3, random_state=0)
    rows = np.arange(40)
    y = {
        "binary": np.where(labels, "yes", "no"),
        "classes": rows % 3,
        "columns": np.stack([labels, rows % 2], 1),
        "numbers": np.array([bag.sum() for bag in bags]),
        "several numbers": np.array([bag[:, :2].mean(0) for bag in bags]),
    }[kind]
    estimator = SetRegressor if kind.endswith("numbers") else SetClassifier
    return estimator(**(FAST | settings)).fit(bags, y), bags[0]


def predicted(estimator, bag):
    """What the page shows: probabilities, or numbers."""
    if isinstance(estimator, SetClassifier):
        return estimator.predict_proba([bag])[0]
    return np.atleast_1d(estimator.predict([bag])[0])


@needs_node
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("binary", {"n_estimators": 2, "clip": 0.5}),
        ("classes", {"clip": None}),
        ("columns", {"aggregation": "attention"}),
        ("numbers", {"aggregation": "gated-attention"}),
        ("several numbers", {"aggregation": "sum"}),
    ],
)
def test_predictions_with_elements_switched_off(kind, settings):
    estimator, bag = fitted(kind, **settings)
    data = model_data(estimator, bag, "a bag")
    choices = [np.ones(len(bag), bool), np.arange(len(bag)) % 2 == 0, np.arange(len(bag)) == 1]
    cases = [{"method": "bag", "data": data, "active": on.tolist()} for on in choices]
    for on, found in zip(choices, run_engine(cases), strict=True):
        close(found["values"], predicted(estimator, bag[on]))
        assert [one is not None for one in found["influences"]] == (on & (on.sum() > 1)).tolist()


@needs_node
@pytest.mark.parametrize("aggregation", ["mean", "equilibrium"])
def test_influence_is_with_minus_without_the_element(aggregation):
    """In large bags by one step of Newton's method, nearly."""
    estimator, bag = fitted("numbers", aggregation=aggregation, max_iter=40)
    case = {"method": "bag", "data": model_data(estimator, bag, ""), "active": [True] * len(bag)}
    exact, newton = run_engine([case, case | {"exact": False}])
    whole = predicted(estimator, bag)
    for i, found in enumerate(exact["influences"]):
        close(found, whole - predicted(estimator, np.delete(bag, i, 0)))
    found = np.ravel(exact["influences"]), np.ravel(newton["influences"])
    assert np.corrcoef(*found)[0, 1] > 0.9


def test_the_page_holds_the_data():
    estimator, bag = fitted("binary")
    names = [f"row {number}" for number in range(len(bag))]
    data = page_data(model_page(estimator, bag, title="Bag </script> 1", names=names))
    assert (data["kind"], data["title"], data["names"]) == ("model", "Bag </script> 1", names)
    assert data["output"] == {"kind": "binary", "names": ["no", "yes"]}
    assert data["features"] == ["x0", "x1", "x2"]
    close(data["elements"], bag, 1e-6)


@pytest.mark.parametrize(
    ("size", "settings", "more", "message"),
    [
        ((5, 2), {}, {}, r"bag has shape \[5, 2\], expected \[n, 3\]"),
        ((0, 3), {}, {}, "the bag has 0 elements"),
        ((MOST_ELEMENTS + 1, 3), {}, {}, "the bag has .* elements"),
        ((5, 3), {}, {"names": ["one"]}, "names has 1 entries"),
        ((5, 3), {"aggregation": "pna"}, {}, "cannot compute PNAPooling"),
    ],
)
def test_what_the_page_cannot_show_is_named(size, settings, more, message):
    with pytest.raises(ValueError, match=message):
        model_page(fitted("binary", **settings)[0], np.zeros(size), **more)


@pytest.mark.parametrize(("rows", "columns"), [(7, 3), (1, 3), (4, 1), (2, 5)])
def test_principal_components(rows, columns):
    x = np.random.default_rng(0).standard_normal((rows, columns))
    coordinates, shares = principal_components(x)
    assert coordinates.shape == (rows, min(2, columns))
    variance = ((x - x.mean(0)) ** 2).sum()
    np.testing.assert_allclose((coordinates**2).sum(0), shares * max(variance, 1e-300), atol=1e-12)
    if columns <= 2 and rows > 1:
        assert shares.sum() == pytest.approx(1)
