"""Tables of the documentation: grouping, naming, and putting them into a page."""

from dataclasses import replace

import pytest
from figure_scripts import load_script

from equipool.report import Table
from run_records import changed, record, write_records, written

tables = load_script("page_tables")
changed_settings = load_script("changed_settings")


def test_a_missing_folder_has_no_runs(tmp_path):
    assert tables.read_folder(tmp_path / "none") == []
    write_records(tmp_path, record([1.0], "sum"), record([1.0], "mean"))
    assert [run.name for run in tables.read_folder(tmp_path)] == ["0", "1"]


def test_methods_with_settings_of_their_own_go_by_their_names(tmp_path):
    runs = written(
        tmp_path / "runs",
        changed(record([1.0], "sum", seed=0), {"learning_rate": 0.5}),
        changed(record([1.0], "sum", seed=1), {"learning_rate": 0.5}),
        changed(record([1.0], "mean"), {"learning_rate": 0.25, "clip_norm": 1.0}),
        changed(record([1.0], "mean"), {"learning_rate": 0.25, "clip_norm": 2.0}),
        changed(record([1.0], "mean", embedding=16), {"clip_norm": 2.0}),
    )
    groups = tables.group_by(runs, ("aggregation", "embedding"))
    assert [(group.method, group.size, len(group.runs)) for group in groups] == [
        ("sum", 8, 2),
        ("mean, clip_norm 1.0", 8, 1),
        ("mean, clip_norm 2.0", 8, 1),
        ("mean", 16, 1),
    ]


def test_hardware_and_versions_are_named_once(tmp_path):
    runs = written(tmp_path / "runs", record([1.0], "sum"), record([1.0], "mean"))
    piece = {"hardware": {"cpu": "abacus", "gpu": "Z1"}, "versions": {"torch": "2.11.0"}}
    text = tables.ran_on([replace(runs[0], ran_on=[piece]), *runs])
    assert [text.count(word) for word in ("3", "Z1", "abacus", "2.11.0", "2.13.0")][1:] == [1] * 4
    assert text.startswith("3 runs")


TABLES = {"first": Table("", ("a",), (("1",),)), "second": Table("", ("b",), (("2",),))}
PAGE = "# Title\n<!-- generated: second -->\nold\n<!-- end -->\ntext\n"


@pytest.mark.parametrize(
    ("content", "text"), [(TABLES["second"], "| b |\n| --- |\n| 2 |"), ("2 runs.", "2 runs.")]
)
def test_blocks_of_a_page_are_replaced(tmp_path, capsys, content, text):
    page = tmp_path / "page.md"
    tables.refresh_page(page, TABLES | {"second": content})
    assert not page.exists()
    page.write_text(PAGE)
    for _ in range(2):
        tables.refresh_page(page, TABLES | {"second": content})
        assert page.read_text() == PAGE.replace("old", f"\n{text}\n")
    assert capsys.readouterr().out.count(text) == 3


def test_a_block_without_a_table_is_an_error(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    with pytest.raises(ValueError, match=r"'second', expected one of \['first'\]"):
        tables.refresh_page(page, {"first": TABLES["first"]})
    assert page.read_text() == PAGE


def test_groups_are_named_after_what_was_changed(tmp_path):
    def one(aggregation="equilibrium", seed=0, error=1.0, training=(), **fields):
        return changed(record([error], aggregation, seed=seed), training, **fields)

    found = changed_settings.changed_groups(
        written(
            tmp_path / "runs",
            one(error=0.1, **{"solver.momentum": 0.5}),
            one(seed=0),
            one(seed=1),
            one(training={"ema_decay": 0.9}),
            one(**{"solver.curvature_safe": True}),
            one("sum", training={"learning_rate": 0.3}),
            one("sum"),
        )
    )
    assert found[0].group is found[0].usual
    assert [run.config["fields"]["seed"] for run in found[0].group.runs] == [0, 1]
    assert {one.name() for one in found} == {
        "equilibrium",
        "equilibrium, solver momentum 0.5",
        "equilibrium, ema decay 0.9",
        "equilibrium, solver curvature safe on",
        "sum",  # by what equilibrium uses
        "sum, learning rate 0.3",
    }
    assert {one.name("learning_rate") for one in found[-2:]} == {"sum"}
