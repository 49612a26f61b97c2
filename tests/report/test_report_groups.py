"""Groups of runs, and how they are named."""

import pytest

from equipool.report.groups import (
    CHANGED,
    common_settings,
    difference,
    group_runs,
    mean_curve,
    shorten,
    usual_group,
    varying_settings,
)
from run_records import FOUR_SETTINGS, changed, counting, record, written


def test_runs_are_grouped_by_what_changes_numbers_but_the_seed(tmp_path):
    wide = changed(record([1.0], embedding=16), {"learning_rate": 0.5})
    other = changed(record([3.0], seed=1), {"checkpoint_every": 7})  # changes no number
    records = [record([1.0]), other, record([0.5], embedding=16), wide]
    groups = group_runs(written(tmp_path / "runs", *records))
    found = [(g.size, g.settings["learning_rate"], len(g.runs), g.mean()) for g in groups]
    assert found == [(8, 0.001, 2, 2.0), (16, 0.001, 1, 0.5), (16, 0.5, 1, 1.0)]
    assert shorten(groups) == groups  # few settings stay as they are


def test_settings_of_the_same_name_keep_their_prefix(tmp_path):
    other = changed(record([1.0]), {"bias_std": 0.4}, bias_std=0.3)
    (best, _) = group_runs(written(tmp_path / "runs", record([2.0]), other))
    assert (best.settings["task.bias_std"], best.settings["training.bias_std"]) == (0.3, 0.4)


def test_a_size_that_is_asked_for_is_named_once(tmp_path):
    runs = written(tmp_path / "runs", record([1.0]), record([2.0], embedding=16))
    for group in group_runs(runs, ["embedding"]):
        assert list(group.settings) == ["aggregation", "embedding"]


def test_best_first_whatever_is_better(tmp_path):
    lower = written(tmp_path / "a", record([1.0], "sum"), record([2.0], "max"))
    higher = written(
        tmp_path / "b", counting([0.25], [0.5], "sum"), counting([0.5], [0.5], "attention")
    )
    assert [group.method for group in group_runs(lower)] == ["sum", "max"]
    assert [group.method for group in group_runs(higher)] == ["attention", "sum"]


@pytest.mark.parametrize("seeds", [(0, 0), (0, 1)])
def test_the_seed_varies_only_where_it_does(tmp_path, seeds):
    records = (
        record([1.0], name, seed=seed) for name, seed in zip(("sum", "max"), seeds, strict=True)
    )
    runs = written(tmp_path / "runs", *records)
    assert ("task.seed" in varying_settings(runs)) is (seeds == (0, 1))
    assert ("task.seed" in common_settings(runs)) is (seeds == (0, 0))
    assert common_settings(runs)["task.embedding"] == 8
    assert "task.aggregation" in varying_settings(runs)


def test_runs_without_an_evaluation_are_grouped_on_request(tmp_path):
    runs = written(tmp_path / "runs", record([1.0]), record([1.0, 2.0], "max"))
    runs[1].curve.clear()
    assert [group.method for group in group_runs(runs)] == ["sum"]
    assert [group.method for group in group_runs(runs, evaluated=False)] == ["sum", "max"]


def test_a_mean_curve_has_the_steps_of_all_runs_and_their_range():
    curves = [[(1, 1.0, 4.0), (2, 2.0, None), (3, 3.0, 1.0)], [(1, 3.0, 2.0), (2, 4.0, 1.0)]]
    (found,) = mean_curve(curves)
    assert found == (1, 2.0, 3.0, 2.0, 4.0)


def one_at_a_time(folder):
    """Equilibrium with one of four settings changed, and a sum with its learning rate."""
    made = [
        changed(record([2.0 + i], "equilibrium"), **{name: 0.25})
        for i, name in enumerate(FOUR_SETTINGS)
    ]
    sums = record([9.0], "sum"), changed(record([8.0], "sum"), {"learning_rate": 0.5})
    return group_runs(written(folder / "runs", record([1.0], "equilibrium"), *made, *sums))


def test_many_settings_become_one_that_lists_the_changes(tmp_path):
    groups = one_at_a_time(tmp_path)
    short = shorten(groups)
    assert [group.runs for group in short] == [group.runs for group in groups]
    assert [list(group.settings) for group in short] == [["aggregation", "embedding", CHANGED]] * 7
    by_error = {group.mean(): group.method for group in short}
    assert by_error[1.0] == "equilibrium"
    assert by_error[2.0] == "equilibrium, solver momentum 0.25"
    assert len(set(by_error.values())) == 7  # all groups are told apart


def test_the_usual_group_is_the_one_most_are_close_to(tmp_path):
    groups = [g for g in one_at_a_time(tmp_path) if g.settings["aggregation"] == "equilibrium"]
    usual = usual_group(groups)
    assert usual.mean() == 1.0
    assert max(len(difference(group, usual)) for group in groups) == 1


def test_in_doubt_usual_is_what_other_methods_use(tmp_path):
    groups = one_at_a_time(tmp_path)
    sums = [group for group in groups if group.settings["aggregation"] == "sum"]
    assert usual_group(sums[::-1], groups).mean() == usual_group(sums, groups).mean() == 9.0
