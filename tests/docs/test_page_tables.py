"""From folders of records to the tables of a page."""

from dataclasses import replace

import pytest
from records import record, write_records

from equipool.report import Summary, read_runs
from equipool.report.recorded import group_by, ran_on, recorded, refresh_page


def made(aggregation, seed=0, embedding=8, **training):
    one = record([1.0], aggregation, seed=seed, embedding=embedding)
    return replace(one, config=one.config | {"training": one.config["training"] | training})


def test_a_folder_that_is_not_there_has_no_runs(tmp_path):
    assert recorded(tmp_path / "none") == []
    write_records(tmp_path, made("sum"), made("mean"))
    assert [run.name for run in recorded(tmp_path)] == ["0", "1"]


def test_methods_with_settings_of_their_own_go_by_their_names(tmp_path):
    files = write_records(
        tmp_path,
        made("sum", seed=0, learning_rate=0.5),
        made("sum", seed=1, learning_rate=0.5),
        made("mean", learning_rate=0.25, clip_norm=1.0),
        made("mean", learning_rate=0.25, clip_norm=2.0),
        made("mean", learning_rate=0.25, clip_norm=2.0, embedding=16),
    )
    groups = group_by(read_runs(files), ("aggregation", "embedding"))
    assert [(group.method, group.size, len(group.runs)) for group in groups] == [
        ("sum", 8, 2),
        ("mean, clip_norm 1.0", 8, 1),
        ("mean, clip_norm 2.0", 8, 1),
        ("mean", 16, 1),
    ]


def test_what_runs_ran_on(tmp_path):
    runs = read_runs(write_records(tmp_path, made("sum"), made("mean")))
    assert ran_on(runs) == "2 runs on abacus, torch 2.13.0."
    piece = {"hardware": {"cpu": "abacus", "gpu": "Z1"}, "versions": {"torch": "2.11.0"}}
    other = replace(runs[0], ran_on=[piece])
    assert ran_on([other, *runs]) == "3 runs on Z1 and abacus, torch 2.11.0 and 2.13.0."


TABLES = {"first": Summary("", ("a",), (("1",),)), "second": Summary("", ("b",), (("2",),))}
PAGE = "# Title\n<!-- generated: second -->\nold\n<!-- end -->\ntext\n"


def test_tables_are_printed_and_put_in_their_places(tmp_path, capsys):
    page = tmp_path / "page.md"
    refresh_page(page, TABLES)
    assert not page.exists()
    page.write_text(PAGE)
    for _ in range(2):
        refresh_page(page, TABLES)
        assert page.read_text() == PAGE.replace("old", "\n| b |\n| --- |\n| 2 |\n")
    out = capsys.readouterr().out
    assert out.count("first\n\n| a |\n| --- |\n| 1 |\n") == 3
    assert out.count("second\n\n| b |") == 3


def test_a_place_for_an_unknown_table(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    with pytest.raises(ValueError, match=r"'second', expected one of \['first'\]"):
        refresh_page(page, {"first": TABLES["first"]})
    assert page.read_text() == PAGE


def test_a_sentence_in_the_place_of_a_table(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    refresh_page(page, {"second": "2 runs."})
    assert page.read_text() == PAGE.replace("old", "\n2 runs.\n")
    assert capsys.readouterr().out == "second\n\n2 runs.\n\n"
