"""The page about bags: made from the records of trials."""

import pytest
from figure_scripts import FIGURES, ROOT, load_script
from page_tables import fill_tables

from command_lines import check_flags, command_lines
from equipool.experiments.bags.data import CLASSICS

script = load_script("bags_page")
PAGE = (ROOT / "docs" / "reproduction" / "bags.md").read_text(encoding="utf-8")
HEADER = {"hardware": {"cpu": "abacus"}, "versions": {"torch": "2.13.0"}}


def row(method, accuracy, dataset="musk1", repeat=0, fold=0, peeked=1.0):
    found = {"dataset": dataset, "repeat": repeat, "fold": fold, "method": method}
    return found | {"accuracy": accuracy, "peeked": peeked, "auc": accuracy}


ROWS = [
    row("mean", 0.5), row("mean", 0.7, fold=1), row("mean", 0.9, repeat=1),
    row("svm", 0.8), row("svm", 0.6, "fox"), row("mean", 0.5, "jets"),
]  # fmt: skip


def test_means_are_of_repeats_and_say_how_many_folds():
    table = script.results(ROWS, ("musk1", "fox"))
    assert table.headings == ("method", "musk1", "fox")
    assert table.rows == (("mean", "75.0 ± 21.2 (3)", "-"), ("svm", "80.0 (1)", "60.0 (1)"))
    assert script.results(ROWS, ("jets",), "auc").rows == (("mean", "50.0 (1)"),)
    assert script.results(ROWS, ("cdnow",), "auc").startswith("None")


def test_the_mean_over_the_classics_needs_all_of_them():
    rows = [row("svm", 0.2 * at, name) for at, name in enumerate(CLASSICS)] + [row("mean", 0.5)]
    table = script.results(rows, CLASSICS)
    assert table.headings == ("method", *CLASSICS, "mean")
    assert [one[-1] for one in table.rows] == ["-", "40.0"]


def test_what_is_missing_is_counted():
    rows = {row[0]: row for row in script.progress(ROWS).rows}
    mean, svm = rows["mean"], rows["svm"]
    assert rows["equilibrium"][1] == "0 of 50"
    assert mean[:3] == ("mean", "3 of 50", "0 of 50")
    assert mean[6] == "1 of 25"
    assert svm[3] == "1 of 50"
    assert script.ran_on([HEADER], ROWS) == (
        "6 of 3,300 trials (11 methods) have been run, on abacus, torch 2.13.0."
    )


def test_ranks_are_of_methods_that_have_been_run_on_all_data_sets():
    rows = [row("mean", 0.5, name) for name in CLASSICS] + [row("max", 0.9)]
    assert script.ranks(rows).startswith("Fewer than two methods")
    rows += [row("svm", 0.8, name, fold=fold) for name in CLASSICS for fold in (0, 1)]
    table = script.ranks(rows)
    assert "(5 folds; critical difference 0.88)" in table.headings[1]
    assert table.rows == (("svm", "1.00", "-"), ("mean", "2.00", "-"))


def test_choosing_on_the_test_fold_is_shown_beside():
    rows = [row("svm", 0.7, name, peeked=0.9) for name in CLASSICS]
    rows.append(row("svm", 0.1, repeat=1, peeked=0.1))  # only the first repeat peeks
    assert script.peeked([*rows, row("mean", 0.5)]).rows == (("svm", "70.0", "90.0", "+20.0"),)


def test_the_effect_of_clipping_is_that_on_the_first_repeat():
    before = [row("max", 0.5, name) | {"auc": 0.6} for name in CLASSICS] + [row("svm", 0.1)]
    after = [row("max", 0.75, name) | {"auc": 0.7} for name in CLASSICS]
    after += [row("max", 0.0, name, repeat=1) for name in CLASSICS] + [row("mean", 0.3)]
    after += [row("max", 0.1, "jets"), row("max", 0.2, fold=1)]  # not in both records
    assert script.clipping(after, before).rows == (("max", "50.0", "75.0", "60.0", "70.0"),)
    assert script.clipping(after[5:], before).rows == ()


def test_a_method_passes_if_all_its_seeds_do():
    tests = [
        {"name": "frequency", "method": "max", "seed": seed, "usual_auc": 0.9, "shifted_auc": auc}
        for seed, auc in enumerate((0.4, 0.8))
    ]
    assert script.assumptions(tests).rows == (("max", "0.90 / 0.60, fails"),)
    assert script.assumptions(tests[1:]).rows == (("max", "0.90 / 0.80, passes"),)


def test_the_figure_is_drawn():
    rows = [row("svm", 0.7, name) for name in CLASSICS]
    assert script.draw_peeked(script.peeked(rows)).startswith(b"\x89PNG")


def test_the_numbers_of_the_page_are_those_of_the_records():
    assert fill_tables(PAGE, script.tables(*script.read())) == PAGE, "run docs/figures/bags_page.py"
    assert (FIGURES / "bags-peeked.png").exists()


@pytest.mark.parametrize("line", command_lines(PAGE))
def test_commands_have_the_flags_that_are_shown(line):
    check_flags(line)
