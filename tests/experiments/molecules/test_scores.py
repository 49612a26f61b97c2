"""Losses and scores of labels, against their definitions."""

import math

import pytest
import torch

from equipool.experiments.molecules.scores import (
    classification_scores,
    label_losses,
    label_moments,
    score,
)
from generated_molecules import generated

NAN = math.nan


def test_missing_labels_do_not_count_in_classification_scores():
    torch.manual_seed(0)
    labels = (torch.rand(40, 3) < 0.4).float()
    prediction = torch.randn(40, 3).round(decimals=1)  # with ties
    hidden = torch.rand(40, 3) < 0.3
    found = classification_scores(prediction, labels.masked_fill(hidden, NAN))
    areas = []
    for label in range(3):
        known = ~hidden[:, label]
        own, values = labels[known, label] == 1, prediction[known, label]
        differences = values[own].unsqueeze(1) - values[~own]
        areas.append(float(((differences > 0) + 0.5 * (differences == 0)).mean()))
    assert found["roc_auc"] == pytest.approx(sum(areas) / 3)


def test_labels_without_a_score_are_left_out():
    labels = torch.tensor([[1.0, 1, NAN], [0.0, 1, NAN], [1.0, 1, NAN]])
    prediction = torch.tensor([[0.9, 1, 0], [0.1, 2, 0], [0.5, 3, 0]])
    assert classification_scores(prediction, labels) == {"roc_auc": 1, "average_precision": 1}
    assert math.isnan(classification_scores(prediction, labels[:, 1:])["roc_auc"])


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_a_missing_label_has_no_loss_and_no_gradient(kind):
    prediction = torch.tensor([[0.5, 1.0], [2.0, -1.0]], requires_grad=True)
    labels = torch.tensor([[1.0, NAN], [NAN, 0.0]])
    deviation = torch.tensor([2.0, 4.0])
    losses = label_losses(prediction, labels, kind, deviation)
    losses.sum().backward()
    assert (losses == 0).tolist() == (prediction.grad == 0).tolist() == labels.isnan().tolist()
    if kind == "regression":
        assert losses.tolist() == [[0.25, 0], [0, 0.25]]
    else:
        assert losses[0, 0].item() == pytest.approx(math.log(1 + math.exp(-0.5)))


def test_regression_is_scored_in_deviations_and_in_units():
    molecules = generated(5, kind="regression")
    labels = torch.tensor([[10.0, 100.0], [20.0, NAN]])
    prediction = torch.tensor([[12.0, 90.0], [20.0, 0.0]])
    found = score(molecules, labels, prediction, torch.tensor([2.0, 10.0]), "roc_auc")
    assert found == pytest.approx(
        {"score": -0.75, "mae": 0.75, "mae_label 0": 1, "mae_label 1": 10, "loss": 2 / 3}
    )


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_a_prediction_that_is_not_a_number_leaves_no_score(kind):
    labels = torch.tensor([[0.0, 1.0], [1.0, 0.0], [NAN, 1.0]])
    prediction = torch.zeros(3, 2)
    prediction[2, 0] = NAN  # where the label is missing it does not count
    deviation = torch.ones(2)
    molecules = generated(5, kind=kind)
    assert math.isfinite(score(molecules, labels, prediction, deviation, "roc_auc")["score"])
    prediction[0, 0] = NAN
    assert math.isnan(score(molecules, labels, prediction, deviation, "roc_auc")["score"])


def test_moments_of_large_numbers_and_of_none():
    labels = torch.tensor([[1e6, NAN, 5.0], [1e6 + 2, NAN, 5.0]])
    mean, deviation = label_moments(labels)
    assert mean.tolist() == [1e6 + 1, 0, 5]
    assert deviation.tolist() == [1, 1, 1]
