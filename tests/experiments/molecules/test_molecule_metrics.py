import importlib
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from equipool.experiments.molecules.labels import (
    absolute_error,
    average_precision,
    mean_over_labels,
    roc_auc,
)

NAN = float("nan")
each_measure = pytest.mark.parametrize("measure", [roc_auc, average_precision])


def draw(rows, columns, seed, missing=0.5, ties=True, ones=0.2):
    generator = torch.Generator().manual_seed(seed)
    predictions = torch.randn(rows, columns, generator=generator)
    if ties:
        predictions = (predictions * 2).round() / 2
    labels = (torch.rand(rows, columns, generator=generator) < ones).float()
    return predictions, labels.masked_fill(
        torch.rand(rows, columns, generator=generator) < missing, NAN
    )


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("rows", [5, 300])
@pytest.mark.parametrize(("measure", "metric"), [(roc_auc, "rocauc"), (average_precision, "ap")])
def test_means_are_those_of_ogb(measure, metric, rows, ties):
    """With 5 rows most labels have no 1, and are left out."""
    predictions, labels = draw(rows, 128, rows, ties=ties)
    evaluator = importlib.import_module("ogb.graphproppred.evaluate").Evaluator("ogbg-molpcba")
    evaluator.eval_metric = metric
    expected = evaluator.eval({"y_true": labels, "y_pred": predictions})[metric]
    assert mean_over_labels(measure, predictions, labels) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(
    ("measure", "theirs"), [(roc_auc, roc_auc_score), (average_precision, average_precision_score)]
)
def test_each_label_is_as_sklearn_has_it(measure, theirs, ties):
    predictions, labels = draw(300, 20, 7, ties=ties)
    for column, found in enumerate(measure(predictions, labels).tolist()):
        known = ~labels[:, column].isnan()
        expected = theirs(labels[known, column], predictions[known, column])
        assert found == pytest.approx(expected, rel=1e-12)


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0.0, 1.0, NAN])), min_size=2))
def test_area_is_the_chance_of_the_right_order(pairs):
    """Against counting all pairs."""
    ones = [score for score, label in pairs if label == 1]
    zeros = [score for score, label in pairs if label == 0]
    wins = [(one > zero) + 0.5 * (one == zero) for one in ones for zero in zeros]
    expected = float(np.mean(wins)) if wins else NAN
    predictions, labels = torch.tensor(pairs, dtype=torch.float32).split(1, dim=1)
    assert roc_auc(predictions, labels).item() == pytest.approx(expected, nan_ok=True)


@each_measure
def test_laws(measure):
    predictions, labels = draw(50, 8, 1)
    base = measure(predictions, labels)
    order = torch.randperm(50)
    torch.testing.assert_close(measure(predictions[order], labels[order]), base)
    torch.testing.assert_close(measure(predictions.exp(), labels), base)
    changed = predictions.masked_fill(labels.isnan(), NAN)
    torch.testing.assert_close(measure(changed, labels), base)  # what is not known does not count
    assert mean_over_labels(measure, labels, labels) == 1.0


@each_measure
def test_labels_without_both_classes_do_not_count(measure):
    labels = torch.tensor([[0.0, 1, 0, NAN], [1, 1, 0, NAN], [NAN, NAN, 0, NAN]])
    predictions = torch.tensor([[1.0], [0], [5]]).expand(3, 4)
    assert measure(predictions, labels).isnan().tolist() == [False, True, True, True]
    assert mean_over_labels(measure, predictions, labels) == measure(predictions, labels)[0].item()
    assert math.isnan(mean_over_labels(measure, predictions[:, 1:], labels[:, 1:]))


@each_measure
def test_a_prediction_that_is_no_number_is_seen(measure):
    predictions, labels = draw(30, 3, 3, missing=0)
    predictions[4, 1] = NAN
    assert measure(predictions, labels).isnan().tolist() == [False, True, False]
    assert math.isnan(mean_over_labels(measure, predictions, labels))


def test_absolute_errors_by_hand():
    labels = torch.tensor([[1.0, NAN, NAN], [2.0, 4.0, NAN]])
    predictions = torch.tensor([[2.0, 9.0, 1.0], [2.5, 2.0, 1.0]])
    assert absolute_error(predictions, labels).tolist() == pytest.approx(
        [0.75, 2.0, NAN], nan_ok=True
    )
    predictions[0, 0] = NAN
    assert absolute_error(predictions, labels)[0].isnan()


@each_measure
def test_shapes_are_checked(measure):
    with pytest.raises(ValueError, match=r"found \(3, 2\) and \(3, 1\)"):
        measure(torch.zeros(3, 2), torch.zeros(3, 1))
    with pytest.raises(ValueError, match="expected the same shape"):
        measure(torch.zeros(3), torch.zeros(3))
    assert measure(torch.zeros(0, 2), torch.zeros(0, 2)).isnan().all()
