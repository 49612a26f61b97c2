"""`equipool fit`, `predict`, `influence` and `compare` on tables."""

import csv
import io
import json
import shlex

import numpy as np
import pandas
import pytest
from test_documented_commands import PAGES

from commands import call
from equipool.cli.fit import choose_task
from equipool.estimators import load, make_bags, write_table
from equipool.estimators.tables import read_table
from equipool.explore.model import model_page
from equipool.explore.page import page_data
from python_blocks import ROOT, run_page

QUICK = {"--device": "cpu", "--max-iter": "4"}
CHEAP = QUICK | {"--aggregation": "mean"}
COLUMNS = {"--bag": "bag", "--label": "label"}
ON = {"--device": "cpu", "--threads": "1"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A table, and a model that was trained on it."""
    folder = tmp_path_factory.mktemp("tables")
    bags, labels = make_bags(24, max_size=9, random_state=0)
    write_table(folder / "bags.csv", bags, labels)
    done = call("fit", folder / "bags.csv", COLUMNS, CHEAP, {"--out": folder / "model"})
    assert f"{sum(map(len, bags)):,} elements in 24 bags of 5 to 9; 4 features" in done.output
    assert "Task: classification of 2 classes\n" in done.stdout
    assert "Network 3: 4 steps, ended by max_iter; training loss " in done.stdout
    assert f"equipool predict {folder / 'model'} TABLE" in done.stdout
    return folder


@pytest.fixture
def frame(place):
    return pandas.read_csv(place / "bags.csv")


def rows_of(text):
    return list(csv.reader(io.StringIO(text)))


def test_predictions_are_those_of_the_estimator_in_every_format(place, tmp_path):
    table, model = place / "bags.csv", place / "model"
    printed = rows_of(call("predict", model, table, ON).stdout)
    assert printed[0] == ["bag", "predicted_label", "probability of 0", "probability of 1"]
    assert [row[0] for row in printed[1:]] == [str(number) for number in range(24)]
    expected = load(model).predict_table(table)["probability of 1"].to_pylist()
    assert [float(row[3]) for row in printed[1:]] == expected
    for name in ("predicted.csv.gz", "predicted.parquet"):
        call("predict", model, table, ON, {"--out": tmp_path / name})
        read = pandas.read_parquet if name.endswith("parquet") else pandas.read_csv
        assert list(read(tmp_path / name)["probability of 1"]) == pytest.approx(expected, rel=1e-12)


def test_influence_is_that_of_the_estimator(place, tmp_path):
    table, model, out = place / "bags.csv", place / "model", tmp_path / "influence.csv"
    call("influence", model, table, ON, {"--bag": "7", "--out": out})
    expected = load(model).influence_table(table, bags=["7"]).to_pandas()
    pandas.testing.assert_frame_equal(
        pandas.read_csv(out, dtype={"bag": expected["bag"].dtype}), expected
    )
    printed = rows_of(call("influence", model, table, ON, {"--bag": "7"}).stdout)[1:]
    assert [row[2] for row in printed] == [f"{value:.3g}" for value in expected["influence"]]


def test_the_page_of_a_bag_is_that_of_the_model(place, tmp_path):
    table, model, out = place / "bags.csv", load(place / "model"), tmp_path / "pages" / "bag.html"
    call("explore", place / "model", table, {"--bag": "3", "--out": out})
    found = read_table(table, model.table_schema_)
    names = [f"row {row}" for row in found.rows[found.bags.ptr[3] : found.bags.ptr[4]]]
    expected = model_page(model.set_params(device="cpu"), found.bags[3], title="bag 3", names=names)
    assert page_data(out.read_text(encoding="utf-8")) == page_data(expected)
    assert page_data(expected)["features"] == ["x0", "x1", "x2", "x3"]


def test_flags_reach_the_model(frame, tmp_path):
    frame = frame.assign(kind=3.0, dull=1)
    frame["kind"] += frame.index % 2
    frame["price"] = frame.groupby("bag")["x0"].transform("mean")
    frame.loc[3, "x1"] = None
    frame.to_parquet(tmp_path / "bags.parquet")
    given = {
        "--label": "price", "--bag": "bag", "--exclude": "label,x3", "--categories": "kind",
        "--missing": "mean", "--seed": "5", "--clip": "none", "--out": tmp_path / "model",
    }  # fmt: skip
    done = call("fit", tmp_path / "bags.parquet", given, CHEAP)
    assert "Warning: left out, as all values are equal: 'dull'" in done.stderr
    assert "Task: regression" in done.stdout
    model = load(tmp_path / "model")
    assert model.table_schema_.channels == ("x0", "x1", "x2", "kind=3.0", "kind=4.0")
    assert model.table_schema_.features[1].fill == pytest.approx(frame["x1"].mean())
    assert (model.aggregation, model.random_state, model.clip) == ("mean", 5, None)


def test_methods_are_compared_on_folds_that_keep_groups_together(frame, tmp_path):
    frame.assign(site=frame["bag"] // 4).to_csv(tmp_path / "bags.csv", index=False)
    out = tmp_path / "scores.json"
    given = {"--aggregation": "mean,max", "--folds": "3", "--repeats": "2", "--group": "site",
             "--metric": "accuracy", "--out": out}  # fmt: skip
    done = call("compare", tmp_path / "bags.csv", COLUMNS, QUICK, given)
    assert "4 features" in done.stdout  # the group is none
    record = json.loads(out.read_text())
    assert (record["folds"], record["metric"]) == (3, "accuracy")
    first, second = record["methods"]
    assert (first["name"], second["name"]) == ("mean", "max")
    assert len(first["scores"]) == len(second["scores"]) == 6
    for one in record["methods"]:
        assert f"{np.mean(one['scores']):.4f}" in done.stdout
    assert "max: fold 6 of 6" in done.stderr


MODEL = ["fit", "bags.csv", COLUMNS, {"--out": "m"}]
WRONG = [
    ([*MODEL, {"--aggregation": "median"}], "aggregation is 'median', expected one of"),
    ([*MODEL, {"--bag": "patient"}], "no column 'patient'"),
    (["fit", "bags.csv", COLUMNS, {"--out": "model"}], "which exists: choose another name"),
    (["predict", "model"], "give a FILE"),
    (["predict", "model", "bags.csv", {"--smiles": "CCO"}], "without --smiles"),
    (["predict", "model", "bags.csv", {"--out": "bags.csv"}], "which is the input"),
    (["predict", "model", "bags.csv", {"--out": "p.xlsx"}], "--out is 'p.xlsx', expected"),
    (["predict", "bags.csv", "model"], "bags.csv is not a file that equipool wrote"),
    (["influence", "model", "bags.csv", {"--bag": "99"}], "the table has no bag '99'"),
    (["explore", "model", "bags.csv", {"--bag": "3", "--out": "bags.csv"}], "ends in .html"),
    (["compare", "bags.csv", COLUMNS, {"--label": "label,x0"}], "expected one column"),
    (["compare", "bags.csv", COLUMNS, {"--aggregation": "mean,summ"}], "--aggregation is"),
    (["compare", "bags.csv", COLUMNS, {"--metric": "beauty"}], "'beauty' is not a valid"),
]


@pytest.mark.parametrize(("words", "message"), WRONG, ids=lambda one: None)
def test_what_is_wrong_is_named(place, monkeypatch, words, message):
    monkeypatch.chdir(place)
    done = call(*words, status=None)
    assert done.exit_code in (1, 2)
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.output
    assert not (place / "m").exists()


@pytest.mark.parametrize(
    ("labels", "task"),
    [([0, 1, 1], "classification"), (["a", "b"], "classification"), ([0.5, 1.0], "regression"),
     (range(11), "regression"), ([[0, 1], [np.nan, 1]], "classification"),
     ([[0.5, 1], [np.nan, 1]], "regression")],
)  # fmt: skip
def test_the_task_is_that_of_the_labels(labels, task):
    assert choose_task(np.array(labels), None) == task
    assert choose_task(np.array(labels), "regression") == "regression"


def test_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
    (tmp_path / "page.md").write_text(text.replace("max_iter=100", "max_iter=2"), encoding="utf-8")
    run_page(tmp_path / "page.md")
    (tmp_path / "model").rename(tmp_path / "earlier")
    more = {"fit": CHEAP, "compare": CHEAP | {"--folds": "2"}}
    for line in PAGES["docs/tables.md"]:
        command, *words = shlex.split(line)
        call(command, *words, more.get(command, ON))
    written = {"model", "predictions.csv", "influence.csv", "scores.json"}
    assert written <= {path.name for path in tmp_path.iterdir()}
