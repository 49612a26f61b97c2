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
from equipool.cli.tables import choose_task
from equipool.estimators import load, make_bags, write_table
from python_blocks import ROOT, run_page

QUICK = {"--device": "cpu", "--max-iter": "4"}
COLUMNS = {"--bag": "bag", "--label": "label"}
PAGE = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A table, and a model that was trained on it."""
    folder = tmp_path_factory.mktemp("tables")
    bags, labels = make_bags(24, max_size=9, random_state=0)
    write_table(folder / "bags.csv", bags, labels)
    done = call("fit", folder / "bags.csv", COLUMNS, QUICK, {"--out": folder / "model"})
    assert (
        f"bags.csv: {sum(map(len, bags)):,} elements in 24 bags of 5 to 9; 4 features"
        in done.output
    )
    assert "Feature columns: 'x0', 'x1', 'x2', 'x3'\n" in done.stdout
    assert "Task: classification of 2 classes: 0, 1" in done.stdout
    for number in (1, 2, 3):
        assert f"network {number} of 3: step 4 of 4" in done.stdout
        assert f"Network {number}: 4 steps, ended by max_iter; training loss " in done.stdout
    assert "accuracy out of fold, 3 folds of one network\n" in done.stdout
    assert f"equipool predict {folder / 'model'} TABLE" in done.stdout
    return folder


def rows_of(text):
    return list(csv.reader(io.StringIO(text)))


def test_a_table_is_fitted_predicted_and_explained(place, tmp_path):
    table, model = place / "bags.csv", place / "model"
    on = {"--device": "cpu", "--threads": "1"}
    printed = rows_of(call("predict", model, table, on).stdout)
    assert printed[0] == ["bag", "predicted_label", "probability of 0", "probability of 1"]
    assert [row[0] for row in printed[1:]] == [str(number) for number in range(24)]
    expected = load(model).predict_table(table)
    assert [float(row[3]) for row in printed[1:]] == expected["probability of 1"].to_pylist()
    for name in ("predicted.csv", "predicted.csv.gz", "predicted.parquet"):
        call("predict", model, table, on, {"--out": tmp_path / name})
        read = pandas.read_parquet if name.endswith("parquet") else pandas.read_csv
        found = list(read(tmp_path / name)["probability of 1"])
        assert found == pytest.approx(expected["probability of 1"].to_pylist(), rel=1e-12)

    given = {"--bag": "7", "--out": tmp_path / "influence.csv", "--picture": tmp_path / "i.svg"}
    call("influence", model, table, on, given)
    heading, *rows = rows_of((tmp_path / "influence.csv").read_text())
    assert heading == ["bag", "row", "influence"]
    lines = rows_of(table.read_text())[1:]
    assert {row[0] for row in rows} == {"7"}
    own = [number for number, line in enumerate(lines) if line[0] == "7"]
    assert sorted(int(row[1]) for row in rows) == own
    strongest = rows[0]
    picture = (tmp_path / "i.svg").read_text()
    assert f"bag 7, row {strongest[1]}" in picture
    assert "what the element adds to the logit of label 1" in picture
    everything = rows_of(call("influence", model, table, on).stdout)
    assert len(everything) == len(lines) + 1


def test_flags_reach_the_model(place, tmp_path):
    frame = pandas.read_csv(place / "bags.csv").assign(kind=3.0)
    frame["kind"] += frame.index % 2
    frame["dull"] = 1
    frame["price"] = frame.groupby("bag")["x0"].transform("mean")
    frame.loc[3, "x1"] = None
    frame.to_parquet(tmp_path / "bags.parquet")
    given = {
        "--label": "price", "--bag": "bag", "--exclude": "label,x3", "--categories": "kind",
        "--missing": "mean", "--aggregation": "mean", "--seed": "5", "--out": tmp_path / "model",
    }  # fmt: skip
    done = call("fit", tmp_path / "bags.parquet", given, QUICK)
    assert "Warning: left out, as all values are equal: 'dull'" in done.stderr
    assert "Task: regression" in done.stdout
    model = load(tmp_path / "model")
    assert model.table_schema_.channels == ("x0", "x1", "x2", "kind=3.0", "kind=4.0")
    assert model.table_schema_.features[1].fill == pytest.approx(frame["x1"].mean())
    assert (model.aggregation, model.random_state) == ("mean", 5)
    chosen = {"--features": "x0,x2", "--out": tmp_path / "two", "--task": "classification"}
    call("fit", place / "bags.csv", COLUMNS, chosen, QUICK, {"--aggregation": "mean"})
    assert load(tmp_path / "two").table_schema_.channels == ("x0", "x2")


def test_methods_are_compared_on_folds(place, tmp_path):
    out = tmp_path / "cv.json"
    given = {"--aggregation": "mean,max", "--folds": "3", "--repeats": "2", "--out": out}
    done = call("compare", place / "bags.csv", COLUMNS, QUICK, given)
    record = json.loads(out.read_text())
    assert [one["name"] for one in record["methods"]] == ["mean", "max"]
    assert (record["folds"], record["repeats"], record["metric"]) == (3, 2, "roc_auc")
    assert {"versions", "hardware", "date", "seed", "test"} <= set(record)
    first, second = record["methods"]
    assert len(first["scores"]) == len(second["scores"]) == 6
    assert first["p_value"] is None
    assert 0 <= second["p_value"] <= 1
    for one in record["methods"]:
        assert one["mean"] == pytest.approx(np.mean(one["scores"]))
        assert f"{one['mean']:.4f}" in done.stdout
        assert f"{one['deviation']:.4f}" in done.stdout
    assert "max: fold 6 of 6" in done.stderr


def test_folds_keep_groups_together_and_other_metrics_work(place, tmp_path):
    frame = pandas.read_csv(place / "bags.csv")
    frame["site"] = frame["bag"] // 4
    frame.to_csv(tmp_path / "bags.csv", index=False)
    given = {"--group": "site", "--folds": "3", "--aggregation": "mean", "--metric": "accuracy"}
    done = call("compare", tmp_path / "bags.csv", COLUMNS, QUICK, given)
    assert "mean accuracy" in done.stdout
    assert "4 features" in done.stdout  # the group is none
    assert "Feature columns: 'x0', 'x1', 'x2', 'x3'\n" in done.stdout
    assert "Warning" not in done.stderr
    given = {"--aggregation": "mean", "--out": tmp_path / "model"}
    done = call("fit", tmp_path / "bags.csv", COLUMNS, QUICK, given)
    assert "'x3', 'site'\n" in done.stdout
    assert "Warning: features that are the same in all rows of each bag: 'site'" in done.stderr
    assert "--exclude site" in done.stderr


@pytest.mark.parametrize("command", ["fit", "compare"])
def test_tables_with_one_class_are_refused(place, tmp_path, command):
    frame = pandas.read_csv(place / "bags.csv").assign(label="healthy")
    frame.to_csv(tmp_path / "bags.csv", index=False)
    out = {"--out": tmp_path / "out"}
    done = call(command, tmp_path / "bags.csv", COLUMNS, QUICK, out, status=None)
    assert done.exit_code == 1
    assert "all bags have the label 'healthy': classification needs two classes" in done.stderr
    assert not (tmp_path / "out").exists()


def test_each_class_of_several_has_its_own_influence(place, tmp_path):
    frame = pandas.read_csv(place / "bags.csv")
    frame["label"] = np.array(["red", "green", "blue"])[frame["bag"] % 3]
    frame.to_csv(tmp_path / "bags.csv", index=False)
    given = {"--aggregation": "mean", "--out": tmp_path / "model"}
    call("fit", tmp_path / "bags.csv", COLUMNS, QUICK, given)
    words = {"--bag": "2", "--picture": tmp_path / "influence.svg", "--device": "cpu"}
    done = call("influence", tmp_path / "model", tmp_path / "bags.csv", words)
    heading, *rows = rows_of(done.stdout)
    assert heading[2:] == [f"influence on {name}" for name in ("blue", "green", "red")]
    values = np.array([row[2:] for row in rows], dtype=float)
    row, column = np.unravel_index(np.abs(values).argmax(), values.shape)
    strongest = f"bag 2, row {rows[row][1]}, {heading[2 + column].removeprefix('influence ')}"
    picture = (tmp_path / "influence.svg").read_text()
    assert strongest in picture
    assert "what the element adds to the logit" in picture
    given = {"--task": "regression", "--aggregation": "mean", "--out": tmp_path / "numbers"}
    call("fit", place / "bags.csv", COLUMNS, QUICK, given)
    call("influence", tmp_path / "numbers", place / "bags.csv", words)
    picture = (tmp_path / "influence.svg").read_text()
    assert "what the element adds to the predicted label" in picture


@pytest.mark.parametrize(("given", "clip"), [({"--seed": "1"}, 3.0), ({"--clip": "2"}, 2.0),
                                             ({"--clip": "none"}, None)])  # fmt: skip
def test_features_are_clipped_where_the_flag_says(place, tmp_path, given, clip):
    cheap = {"--aggregation": "mean", "--out": tmp_path / "model"}
    call("fit", place / "bags.csv", COLUMNS, QUICK, cheap, given)
    model = load(tmp_path / "model")
    assert model.clip == clip
    assert model.scaling_.clip == (np.inf if clip is None else clip)


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        (["fit", "none.csv", COLUMNS, {"--out": "m"}], ["TABLE is none.csv, which does not exist"]),
        (["fit", "bags.csv", COLUMNS, {"--out": "model"}], ["which exists: choose another name"]),
        (["fit", "bags.csv", COLUMNS, {"--out": "m", "--aggregation": "median"}],
         ["--aggregation is 'median', expected one of equilibrium"]),
        (["fit", "bags.csv", COLUMNS, {"--out": "m", "--features": "x0,,x1"}],
         ["--features is 'x0,,x1', expected names"]),
        (["fit", "bags.csv", COLUMNS, {"--out": "m", "--exclude": "x0,x0"}], ["'x0' twice"]),
        (["fit", "bags.csv", {"--bag": "patient", "--label": "label", "--out": "m"}],
         ["no column 'patient'", "'bag', 'label', 'x0'"]),
        (["fit", "bags.csv", COLUMNS, {"--out": "m", "--max-seconds": "0"}],
         ["max_seconds is 0.0, expected more than 0"]),
        (["fit", "bags.csv", COLUMNS, {"--out": "m", "--clip": "0"}],
         ["--clip is 0.0, expected a number more than 0, or none"]),
        (["compare", "bags.csv", COLUMNS, {"--clip": "few"}], ["--clip is 'few'"]),
        (["fit", "bags.csv", COLUMNS, {"--out": "m", "--device": "tpu"}], ["--device is 'tpu'"]),
        (["predict", "model"], ["FILE is missing"]),
        (["predict", "model", "none.csv"], ["TABLE is none.csv"]),
        (["predict", "model", "bags.csv", {"--smiles": "CCO"}], ["--smiles is for molecules"]),
        (["predict", "model", "bags.csv", {"--out": "bags.csv"}], ["which is the input"]),
        (["predict", "model", "bags.csv", {"--out": "p.xlsx"}], ["--out is 'p.xlsx'", ".parquet"]),
        (["predict", "nowhere", "bags.csv"], ["MODEL is nowhere, which does not exist"]),
        (["predict", ".", "bags.csv"], ["what `equipool fit` or `equipool train` writes"]),
        (["predict", "bags.csv", "model"], ["bags.csv is not a file that equipool wrote"]),
        (["influence", "model", "bags.csv", {"--bag": "99"}], ["the table has no bag '99'"]),
        (["influence", "nowhere", "bags.csv"], ["MODEL is nowhere, which does not exist"]),
        (["influence", "bags.csv", "model"], ["bags.csv is not a file that equipool wrote"]),
        (["explore", "bags.csv", "model", {"--bag": "1"}],
         ["bags.csv is not a file that equipool wrote"]),
        (["compare", "bags.csv", COLUMNS, {"--folds": "1"}], ["folds is 1, expected 2 or more"]),
        (["compare", "bags.csv", COLUMNS, {"--folds": "13"}], ["the rarest class has 12 bags"]),
        (["compare", "bags.csv", COLUMNS, {"--metric": "beauty"}], ["--metric is 'beauty'"]),
    ],
    ids=lambda one: None,
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(place, monkeypatch, words, messages):
    monkeypatch.chdir(place)
    done = call(*words, status=None)
    assert done.exit_code in (1, 2)
    (line,) = done.stderr.splitlines()
    assert all(message in line for message in messages), line
    assert "Traceback" not in done.output


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
    page = PAGE.replace("max_iter=100", "max_iter=2")
    short = tmp_path / "page.md"
    short.write_text(page, encoding="utf-8")
    run_page(short)
    (tmp_path / "model").rename(tmp_path / "earlier")
    for line in PAGES["docs/tables.md"]:
        command, *words = shlex.split(line)
        more = {"fit": QUICK, "compare": QUICK | {"--folds": "2"}}
        call(command, *words, more.get(command, {"--device": "cpu", "--threads": "1"}))
    written = {"model", "predictions.csv", "influence.csv", "influence.svg", "scores.json"}
    assert written <= {path.name for path in tmp_path.iterdir()}
