"""What the estimators learn, and laws of their predictions."""

import numpy as np
import pytest
import torch
from generated_bags import make_bags

from equipool import FixedSteps
from equipool.baselines import AGGREGATIONS, MaxPooling
from equipool.estimators import SetClassifier, SetRegressor, prediction
from equipool.estimators.bags import as_bags
from equipool.estimators.transformers import measure_scaling

BAGS, LABELS = make_bags()
QUICK = {"hidden_size": 8, "channels": 4, "max_iter": 12, "n_estimators": 1, "random_state": 0}


def quick(**changed):
    return SetClassifier(**(QUICK | changed))


@pytest.mark.parametrize(
    "labels", [np.array(["no", "yes"]), np.array([7, 3]), np.array([1.0, 2.0])]
)
def test_two_classes_of_any_labels(labels):
    fitted = quick(aggregation="max", max_iter=80, learning_rate=0.03, hidden_size=16).fit(
        BAGS, labels[LABELS]
    )
    assert fitted.classes_.tolist() == sorted(labels.tolist())
    assert fitted.score(BAGS, labels[LABELS]) > 0.85
    probability, decision = fitted.predict_proba(BAGS), fitted.decision_function(BAGS)
    np.testing.assert_allclose(probability.sum(1), 1, rtol=1e-6)
    second = decision > 0
    assert (fitted.predict(BAGS) == fitted.classes_[second.astype(int)]).all()
    assert ((probability[:, 1] > 0.5) == second).all()


def test_many_classes():
    sizes = np.array([min(len(bag), 3) for bag in BAGS])
    fitted = quick(aggregation="sum", max_iter=100, learning_rate=0.03, dropout=0.0)
    fitted.fit(BAGS, sizes)
    assert fitted.predict_proba(BAGS).shape == fitted.decision_function(BAGS).shape == (60, 4)
    assert fitted.score(BAGS, sizes) > 0.8


def test_several_columns_with_missing_values():
    """What is missing does not count, whatever would have been there."""
    columns = np.stack([LABELS, 1 - LABELS], axis=1).astype(float)
    columns[5:15, 0] = columns[20:30, 1] = np.nan
    columns[50] = np.nan
    fitted = quick(aggregation="max", max_iter=80, learning_rate=0.03).fit(BAGS, columns)
    found = fitted.predict(BAGS)
    assert (found[:, 0] == LABELS).mean() > 0.8
    assert (found[:, 1] != LABELS).mean() > 0.8
    without = quick(aggregation="max", max_iter=80, learning_rate=0.03)
    without.fit(BAGS[:50] + BAGS[51:], np.delete(columns, 50, axis=0))
    expected = fitted.predict_proba(BAGS)
    np.testing.assert_allclose(without.predict_proba(BAGS), expected, rtol=1e-9, atol=1e-12)


def test_numbers():
    targets = np.array([1e6 + 100 * bag[:, 1].sum() for bag in BAGS])
    regressor = SetRegressor(
        **(QUICK | {"max_iter": 100, "learning_rate": 0.03}), aggregation="sum"
    )
    assert regressor.fit(BAGS, targets).score(BAGS, targets) > 0.8
    both = np.stack([targets, -targets], axis=1)
    both[::7, 1] = np.nan
    predicted = regressor.fit(BAGS, both).predict(BAGS)
    assert predicted.shape == (60, 2)
    assert np.corrcoef(predicted[:, 1], -targets)[0, 1] > 0.8


@pytest.mark.parametrize("unit", [1e-300, 1e160])
def test_numbers_of_any_size_are_predicted_alike(unit):
    targets = np.array([2.0 + bag[:, 1].sum() for bag in BAGS])
    settings = QUICK | {"aggregation": "sum", "early_stopping": True}
    one, other = (SetRegressor(**settings).fit(BAGS, size * targets) for size in (1.0, unit))
    np.testing.assert_allclose(other.predict(BAGS) / unit, one.predict(BAGS), rtol=1e-6)
    with pytest.raises(ValueError, match="cannot hold: scale them first"):
        other._finish(torch.zeros(1, 1))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_bag_is_predicted_alike_in_any_company(aggregation):
    bags, labels = make_bags(20, least=1, most=5)
    fitted = quick(aggregation=aggregation, max_iter=2).fit(bags, labels)
    expected = fitted.decision_function(bags)
    empty = np.zeros((0, 3))
    order = np.random.default_rng(0).permutation(20)
    near = {"rtol": 1e-9, "atol": 1e-9}
    shuffled = fitted.decision_function([bags[i][::-1] for i in order])
    np.testing.assert_allclose(shuffled, expected[order], **near)
    beside = fitted.decision_function([empty, bags[3], empty, np.tile(bags[4], (50, 1))])
    np.testing.assert_allclose(beside[1], expected[3], **near)
    assert np.isfinite(beside).all()


@pytest.mark.parametrize("max_iter", [1, 60])
def test_a_large_bag_is_predicted_at_its_minimum_in_chunks(monkeypatch, max_iter):
    """Whether the network has learned to reach it within its own steps or not."""
    fitted = quick(max_iter=max_iter, learning_rate=0.03).fit(BAGS, LABELS)
    layer = fitted.networks_[0].aggregation
    large = np.random.default_rng(0).normal(size=(300, 3))
    bags = [BAGS[0], large, BAGS[1]]
    layer.steps, steps = FixedSteps(150), layer.steps
    expected = fitted.decision_function(bags)
    layer.steps = steps
    sizes = []
    forward = torch.nn.Linear.forward

    def seen(self, x):
        sizes.append(len(x))
        return forward(self, x)

    for name in ("LARGE", "CHUNK", "SAMPLE"):
        monkeypatch.setattr(prediction, name, 128)
    monkeypatch.setattr(torch.nn.Linear, "forward", seen)
    np.testing.assert_allclose(fitted.decision_function(bags)[1], expected[1], atol=1e-3)
    assert max(sizes) <= 128
    assert sum(sizes) < 60_000  # a dozen passes, of some layers each


def test_the_minimum_of_a_bag_unlike_its_sample_is_found(monkeypatch):
    """The sample has none of the extreme elements, which decide."""
    fitted = quick(max_iter=60, learning_rate=0.03).fit(BAGS, LABELS)
    large = np.zeros((200, 3))
    large[1::2] = 3.0
    fitted.networks_[0].aggregation.steps = FixedSteps(150)
    expected = fitted.decision_function([large])
    monkeypatch.setattr(prediction, "LARGE", 128)
    monkeypatch.setattr(prediction, "SAMPLE", 100)
    monkeypatch.setattr(prediction, "sample_rows", lambda count: np.arange(0, count, 2))
    np.testing.assert_allclose(fitted.decision_function([large]), expected, atol=1e-2)


def test_large_bags_are_sampled_in_training():
    bags, labels = make_bags(12, least=20, most=40)
    fitted = quick(max_elements=8, max_iter=3, aggregation="mean").fit(bags, labels)
    again = quick(max_elements=8, max_iter=3, aggregation="mean").fit(bags, labels)
    np.testing.assert_array_equal(fitted.predict_proba(bags), again.predict_proba(bags))
    whole = quick(max_elements=40, max_iter=3, aggregation="mean").fit(bags, labels)
    assert np.abs(whole.predict_proba(bags) - fitted.predict_proba(bags)).max() > 1e-6


def test_early_stopping_keeps_the_best_weights():
    """Labels of held-out bags are noise, so their loss soon rises."""
    bags, _ = make_bags(80, least=1)
    labels = np.random.default_rng(1).integers(0, 2, size=80)
    fitted = quick(
        aggregation="mean", max_iter=400, learning_rate=0.05, early_stopping=True,
        validation_fraction=0.25, n_iter_no_change=2, dropout=0.0,
    ).fit(bags, labels)  # fmt: skip
    (history,) = fitted.history_
    assert fitted.stopped_ == ["n_iter_no_change"]
    losses = history["validation_loss"]
    assert len(history["loss"]) < 400
    assert losses.argmin() == len(losses) - 3
    assert history["step"].tolist() == [20 * (i + 1) for i in range(len(losses))]


def test_warm_start_goes_on():
    first = quick(aggregation="mean", warm_start=True).fit(BAGS, LABELS)
    losses = [first.history_[0]["loss"]]
    for _ in range(8):
        losses.append(first.fit(BAGS, LABELS).history_[0]["loss"])
    assert losses[-1][0] < losses[0][0]
    assert losses[-1].mean() < losses[0].mean()
    with pytest.raises(ValueError, match=r"classes that the first fit lacked: \[2\]"):
        first.fit(BAGS, np.where(LABELS, 2, 0))
    with pytest.raises(ValueError, match="warm_start cannot change n_estimators"):
        first.set_params(n_estimators=2).fit(BAGS, LABELS)


def test_weights_of_classes():
    """Nearly all bags go to the class that counts more."""
    labels = np.random.default_rng(1).integers(0, 2, size=60)
    heavy = quick(
        aggregation="mean", max_iter=60, learning_rate=0.03, class_weight={0: 1, 1: 1000}
    )  # fmt: skip
    assert heavy.fit(BAGS, labels).predict(BAGS).mean() > 0.9


def test_balanced_classes_count_alike_in_each_column():
    columns = np.stack([np.arange(60) < 6, np.arange(60) < 45], axis=1).astype(float)
    columns[50:, 0] = np.nan
    targets = quick(class_weight="balanced")._make_targets(columns, np.ones(60), again=False)
    for label, weights in zip(columns.T, targets.weights.T, strict=True):
        assert weights[label == 1].sum() == pytest.approx(weights[label == 0].sum())
        assert not weights[np.isnan(label)].any()


def test_features_are_scaled_by_bags_not_by_elements():
    bags = as_bags([np.zeros((1000, 1)), np.full((1, 1), 2.0)])
    scaling = measure_scaling(bags)
    assert (scaling.mean.item(), scaling.scale.item()) == pytest.approx((1.0, 1.0))
    assert measure_scaling(bags, np.array([0, 1])).scale.item() == 1.0  # constant
    units = np.array([1e-9, 1.0, 1e9])
    one, two = (quick(aggregation="mean").fit(X, LABELS).predict_proba(X)
                for X in (BAGS, [bag * units + 5 * units for bag in BAGS]))  # fmt: skip
    np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-5)


def unix_seconds(dtype=np.float64):
    """Bags of three times within two minutes; the label is a shift of half a minute."""
    random, labels = np.random.default_rng(0), np.arange(40) % 2
    times = 1.7e9 + random.integers(0, 60, (40, 3, 1)) + 30 * labels[:, None, None]
    return list(times.astype(dtype)), labels


def test_unix_seconds_are_told_apart():
    """As float32 they would have steps of 128 seconds."""
    bags, labels = unix_seconds()
    settings = {"aggregation": "mean", "max_iter": 60, "learning_rate": 0.03, "batch_size": 16}
    assert quick(**settings).fit(bags, labels).score(bags, labels) > 0.9


SECONDS = unix_seconds()[0]
FAR_APART = [[[1e9 * (number // 2) + number % 2]] for number in range(6)]


@pytest.mark.parametrize(
    ("bags", "lost"),
    [
        (unix_seconds(np.float32)[0], r"float32 input or .*: '0 \(steps of 128 in "),
        (FAR_APART, r"or float32 training .*: '0 \(6 values become"),
        (
            [np.append(bag + 1 / (2 + number), [[0]], 0) for number, bag in enumerate(SECONDS)],
            r"or float32 training .*: '0 \(\d+ values become \d\)",
        ),
    ],
)
def test_lost_resolution_is_told(bags, lost):
    with pytest.warns(UserWarning, match=lost):
        quick(aggregation="mean", max_iter=1, batch_size=1).fit(bags, np.arange(len(bags)) % 2)


def test_extreme_values_are_clipped():
    far, farther = ([np.full((2, 3), value)] for value in (1e3, 1e6))
    for clip, same in ((3.0, True), (None, False)):
        model = quick(aggregation="sum", clip=clip).fit(BAGS, LABELS)
        found = model.decision_function(far), model.decision_function(farther)
        assert np.array_equal(*found) == same


def test_what_ended_the_training_is_kept():
    assert quick(aggregation="mean").fit(BAGS, LABELS).stopped_ == ["max_iter"]
    short = quick(aggregation="mean", max_seconds=1e-9, n_estimators=2).fit(BAGS, LABELS)
    assert short.stopped_ == ["max_seconds"] * 2
    assert len(short.history_[0]["loss"]) == 1


def test_an_aggregation_can_be_a_function():
    model = quick(aggregation=MaxPooling).fit(BAGS, LABELS)
    assert isinstance(model.networks_[0].aggregation, MaxPooling)
    with pytest.raises(ValueError, match="aggregation is a callable, expected a name"):
        model.save("model")


def test_threads_are_as_before():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        quick(aggregation="mean").fit(BAGS, LABELS)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


WRONG = [
    ({"aggregation": "median"}, LABELS, "aggregation is 'median', expected one of"),
    ({"channels": 0}, LABELS, "channels is 0, expected a whole number at least 1"),
    ({"class_weight": {0: 0, 1: 0}}, LABELS, "class_weight is zero for all bags"),
    ({}, np.full((60, 2), np.nan), "y has no label"),
    ({}, np.full((60, 2), 2.0), "values other than 0, 1 and NaN"),
    ({}, np.linspace(0, 1, 60), "continuous"),
    (SetRegressor, [np.nan, *range(59)], "y contains NaN"),
    (SetRegressor, np.stack([np.ones(60), np.full(60, np.nan)], axis=1), "without any value"),
]


@pytest.mark.parametrize(("given", "y", "message"), WRONG)
def test_what_is_wrong_is_named(given, y, message):
    model = SetRegressor(**QUICK) if given is SetRegressor else quick(**given)
    with pytest.raises(ValueError, match=message):
        model.fit(BAGS, y)
