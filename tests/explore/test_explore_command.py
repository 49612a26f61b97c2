"""`equipool explore`."""

import pytest
from explorer_engine import close, needs_node, run_engine

from commands import call
from equipool.explore.page import page_data

pytest.importorskip("sklearn")

from equipool.estimators import load, make_bags, write_table
from equipool.estimators.tables import read_table


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A table, and a model that was trained on it."""
    folder = tmp_path_factory.mktemp("explore")
    bags, labels = make_bags(24, max_size=9, random_state=0)
    write_table(folder / "bags.csv", bags, labels)
    quick = {"--bag": "bag", "--label": "label", "--device": "cpu", "--max-iter": "3"}
    call("fit", folder / "bags.csv", quick, {"--out": folder / "model"})
    return folder


@needs_node
def test_the_page_predicts_what_the_model_predicts(place):
    out = place / "pages" / "bag.html"
    done = call("explore", place / "model", place / "bags.csv", {"--bag": "3", "--out": out})
    assert f"Wrote {out}: open it in a browser" in done.stderr
    data = page_data(out.read_text(encoding="utf-8"))
    assert data["title"] == "bag 3"
    assert data["features"] == ["x0", "x1", "x2", "x3"]
    model = load(place / "model")
    found = read_table(place / "bags.csv", model.table_schema_)
    rows = found.rows[found.bags.ptr[3] : found.bags.ptr[4]]
    assert data["names"] == [f"row {row}" for row in rows]
    case = {"method": "bag", "data": data, "active": [True] * len(rows)}
    close(run_engine([case])[0]["values"], model.predict_proba([found.bags[3]])[0])
