"""What is said of labels that give no score."""

import math

import pytest

from equipool.experiments.data_folder import using_data_folder
from equipool.experiments.registry import MoleculeTask
from generated_molecules import generated, serve


def look(folder):
    """Read the data, which a folder has of its own."""
    with using_data_folder(folder):
        MoleculeTask("sum", batch_size=4).data()


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("classification", 0.0, "no label has both a 0 and a 1"),
        ("classification", math.nan, "no label has both a 0 and a 1"),
        ("regression", math.nan, "no label has a value"),
    ],
)
def test_validation_labels_that_give_no_score_are_said(
    kind, value, expected, tmp_path, monkeypatch, capsys
):
    found = generated(40, kind=kind)
    serve(found, monkeypatch)
    look(tmp_path / "as it is")
    assert not capsys.readouterr().err
    found.labels[found.split["valid"]] = value
    look(tmp_path / "changed")
    said = f"molhiv: the validation part has no score because {expected}."
    assert said in capsys.readouterr().err


def test_a_test_part_that_gives_no_score_is_said(tmp_path, monkeypatch, capsys):
    found = generated(40)
    found.labels[found.split["test"]] = math.nan
    serve(found, monkeypatch)
    look(tmp_path)
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("molhiv: the test part has no score because no label has both a 0 and")


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


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_an_empty_validation_part_is_said(kind, tmp_path, monkeypatch, capsys):
    found = generated(40, kind=kind)
    found.split["valid"] = found.split["valid"][:0]
    serve(found, monkeypatch)
    look(tmp_path)
    assert "the validation part has no score because it is empty" in capsys.readouterr().err
