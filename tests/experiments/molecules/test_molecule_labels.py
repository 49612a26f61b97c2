"""Losses and scores of labels, some of which are missing, and warnings about missing scores."""

import math

import numpy as np
import pytest
import torch

from equipool.experiments.data import using_data_folder
from equipool.experiments.molecules import MoleculeTask
from equipool.experiments.molecules.labels import (
    BinaryLabels,
    NumericLabels,
    label_moments,
    usual_measure,
)
from generated_molecules import generated, serve

NAN = math.nan
BINARY = torch.tensor([[0.0, 1.0], [1.0, NAN], [NAN, NAN], [1.0, 0.0]])
NUMBERS = torch.tensor([[10.0, -3.0], [14.0, NAN], [NAN, NAN], [12.0, 5.0]])


def each_kind():
    return [(BinaryLabels(), BINARY), (NumericLabels(NUMBERS, ("a", "b")), NUMBERS)]


@pytest.mark.parametrize(("labels", "values"), each_kind(), ids=["binary", "numeric"])
def test_missing_labels_carry_neither_loss_nor_gradient(labels, values):
    prediction = torch.randn(4, 2, requires_grad=True)
    losses = labels.losses(prediction, values)
    missing = values.isnan()
    assert not losses[missing].any()
    assert (losses[~missing] > 0).all()
    losses.sum().backward()
    assert not prediction.grad[missing].any()
    assert (prediction.grad[~missing] != 0).all()
    alone = labels.loss(prediction[3:], values[3:])  # as if none were missing
    torch.testing.assert_close(losses[3:], alone)


def test_the_loss_of_binary_labels_is_the_cross_entropy():
    prediction = torch.tensor([[0.3], [-2.0]])
    expected = -torch.tensor([[1.0], [-1.0]]).mul(prediction).sigmoid().log()
    found = BinaryLabels().losses(prediction, torch.tensor([[1.0], [0.0]]))
    torch.testing.assert_close(found, expected)


def test_numbers_are_measured_in_deviations():
    labels = NumericLabels(NUMBERS, ("a", "b"))
    deviation = torch.tensor([(8 / 3) ** 0.5, 4.0])
    found = labels.losses(torch.tensor([[11.0, 1.0]]), torch.tensor([[10.0, -3.0]]))
    torch.testing.assert_close(found, torch.tensor([[1.0, 4.0]]) / deviation)
    z = torch.tensor([[0.0, 0.0], [1.0, -1.0]])
    expected = torch.tensor([[12.0, 1.0], [12 + (8 / 3) ** 0.5, -3.0]])
    torch.testing.assert_close(labels.units()(z), expected)


def test_scores_of_binary_labels():
    prediction = torch.tensor([[0.1, 0.2], [0.3, 0.9], [0.0, 0.0], [0.2, 0.1]])
    for measure in ("roc_auc", "average_precision"):
        found = BinaryLabels(measure).measures(prediction, BINARY)
        assert found["roc_auc"] == 1.0
        assert found["score"] == found[measure]
    present = ~BINARY.isnan()
    losses = BinaryLabels().losses(prediction, BINARY)
    assert found["loss"] == pytest.approx(float(losses.sum() / present.sum()))


def test_of_an_error_less_is_better():
    labels = NumericLabels(NUMBERS, ("a", "b"))
    found = labels.scores(torch.nan_to_num(NUMBERS) + torch.tensor([1.0, 2.0]), NUMBERS)
    assert found["mae_a"] == pytest.approx(1.0)
    assert found["mae_b"] == pytest.approx(2.0)
    assert found["mae"] == pytest.approx((1 / (8 / 3) ** 0.5 + 2 / 4) / 2)
    assert found["score"] == -found["mae"]


@pytest.mark.parametrize("values", [torch.ones(3, 2), torch.full((3, 2), NAN), torch.ones(0, 2)])
def test_where_there_is_nothing_to_measure_it_is_not_a_number(values):
    found = BinaryLabels().measures(torch.zeros(len(values), 2), values)
    assert math.isnan(found["score"])
    if not len(values):
        numeric = NumericLabels(NUMBERS, ("a", "b")).measures(torch.zeros(0, 2), values)
        assert all(math.isnan(value) for value in numeric.values())


def test_data_sets_are_judged_as_is_usual():
    assert usual_measure("molhiv") == usual_measure("tox21") == usual_measure(None) == "roc_auc"
    assert usual_measure("molpcba") == usual_measure("toxcast") == "average_precision"


def test_moments_leave_out_what_is_missing():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randn(50, 3, generator=generator) * 2 + 500
    labels[torch.rand(50, 3, generator=generator) < 0.4] = torch.nan
    labels[:, 2] = torch.nan
    mean, deviation = label_moments(labels)
    expected = labels.double().numpy()[:, :2]
    np.testing.assert_allclose(mean[:2], np.nanmean(expected, 0), rtol=1e-6)
    np.testing.assert_allclose(deviation[:2], np.nanstd(expected, 0), rtol=1e-6)
    assert (mean[2], deviation[2]) == (0, 1)
    assert label_moments(torch.full((4, 1), 3.0))[1].item() == 1.0


def look(folder):
    """Read the data, which a folder has of its own."""
    with using_data_folder(folder):
        MoleculeTask("sum", batch_size=4).data()


@pytest.mark.parametrize(("part", "word"), [("valid", "validation"), ("test", "test")])
@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("classification", 0.0, "no label has both a 0 and a 1"),
        ("classification", math.nan, "no label has both a 0 and a 1"),
        ("regression", math.nan, "no label has a value"),
        ("regression", None, "it is empty"),
    ],
)
def test_parts_without_a_score_are_reported(
    kind, value, expected, part, word, tmp_path, monkeypatch, capsys
):
    found = generated(40, kind=kind)
    serve(found, monkeypatch)
    look(tmp_path / "as it is")
    assert not capsys.readouterr().err
    if value is None:
        found.split[part] = found.split[part][:0]
    else:
        found.labels[found.split[part]] = value
    look(tmp_path / "changed")
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"molhiv: the {word} part has no score because {expected}.")


def test_one_process_of_several_speaks(tmp_path, monkeypatch, capsys):
    found = generated(40)
    found.labels[found.split["test"]] = math.nan
    serve(found, monkeypatch)
    monkeypatch.setenv("RANK", "1")
    look(tmp_path)
    assert not capsys.readouterr().err


@pytest.mark.parametrize(("part", "word"), [("valid", "validation"), ("test", "test")])
def test_labels_that_do_not_count_are_named(part, word, tmp_path, monkeypatch, capsys):
    found = generated(40)
    left_out, *counted = found.label_names
    assert counted
    found.labels[found.split[part], 0] = 1.0
    serve(found, monkeypatch)
    look(tmp_path)
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"molhiv: the {word} score ignores 1 of {len(found.label_names)} labels")
    assert said.endswith(f": {left_out!r}")
