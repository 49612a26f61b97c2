"""The effect of one setting."""

import pytest

from equipool.report.by_setting import draw_setting, lines_of, summarize_setting, varied_settings
from equipool.report.groups import group_runs
from equipool.report.page import by_setting
from run_records import changed, record, rows, written


def made(values, inner_steps, aggregation="equilibrium", seed=0, seconds=1.0):
    one = record(values, aggregation=aggregation, seed=seed, seconds_per_step=seconds)
    return changed(one, inner_steps=inner_steps)


@pytest.fixture
def runs(tmp_path):
    """Of 10, 2 and 1 inner steps, one of them with two seeds, and a sum."""
    return written(
        tmp_path / "runs",
        made([0.2, 0.3], 10, seconds=2.0),
        made([0.5, 0.4], 2, seed=0),
        made([0.6, 0.9], 2, seed=1, seconds=3.0),
        made([0.9, 0.8], 1),
        made([0.7, 0.7], 5, aggregation="sum", seconds=0.5),
    )


def test_rows_are_in_the_order_of_the_values(runs):
    found = rows(summarize_setting(runs, "inner_steps"))
    assert [tuple(row.values())[-3:] for row in found] == [
        ("1", "0.8", "1"),
        ("2", "0.5 ± 0.141", "2 ± 1.41"),
        ("1", "0.2", "2"),
        ("1", "0.7", "0.5"),
    ]
    assert [row["inner_steps"] for row in found] == ["1", "2", "10", "-"]


def test_a_method_without_the_setting_is_a_constant_line(runs, tmp_path):
    other = changed(made([0.1], 5), **{"solver.momentum": 0.25})  # no line: of the same method
    groups = group_runs([*runs, *written(tmp_path / "more", other)])
    lines = lines_of(groups, "inner_steps")
    assert [(len(line.groups), line.constant) for line in lines] == [(3, False), (1, True)]
    assert [line.method.split(",")[0] for line in lines] == ["equilibrium", "sum"]
    two = [run for run in runs if run.name in ("0", "4")]
    single = lines_of(group_runs(two, ["inner_steps"]), "inner_steps")
    assert [line.constant for line in single] == [False, False]


def test_what_each_method_has_its_own_value_of_was_not_varied(tmp_path):
    """As learning rates that were chosen for each method."""
    rates = {"equilibrium": 1e-3, "sum": 3e-4, "mean": 1e-3}
    made = (changed(record([0.5], name), {"learning_rate": rate}) for name, rate in rates.items())
    groups = group_runs(written(tmp_path / "runs", *made), ["learning_rate"])
    assert {g.settings["aggregation"]: g.settings["learning_rate"] for g in groups} == rates
    assert varied_settings(groups) == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [(("gcn", "gin"), []), ((True, False), []), ((None, 0.5), []), ((None, 0.5, 2), ["chosen"]),
     (([60, 30], [6, 3]), ["chosen"])],
)  # fmt: skip
def test_only_numbers_are_drawn(tmp_path, values, expected):
    records = [changed(record([0.5]), chosen=value) for value in values]
    assert varied_settings(group_runs(written(tmp_path / "runs", *records))) == expected


def test_the_figure_shows_every_run_and_the_means(runs, drawn):
    draw_setting(group_runs(runs), "inner_steps")
    score, seconds = drawn[0].axes
    for ax, means, constant in ((score, [0.8, 0.5, 0.2], 0.7), (seconds, [1, 2, 2], 0.5)):
        assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2", "10"]
        values = [list(line.get_ydata()) for line in ax.lines]
        assert pytest.approx(means) in values
        assert [constant, constant] in values
        dots = [y for line in ax.lines if line.get_marker() == "." for y in line.get_ydata()]
        assert len(dots) == 4


def test_the_sizes_are_a_setting_too(tmp_path, drawn):
    """As in the paper's second figure."""
    made = [record([1.0 / size], name, size) for name in ("sum", "max") for size in (8, 16, 64)]
    (section,) = by_setting(written(tmp_path / "runs", *made))
    assert [row["embedding"] for row in rows(section.tables[0])] == 2 * ["8", "16", "64"]
    assert len(drawn) == 1


def test_a_run_that_never_was_finite_leaves_a_gap(tmp_path, drawn):
    runs = written(tmp_path / "runs", made([None, None], 1), made([0.5, 0.4], 2))
    draw_setting(group_runs(runs), "inner_steps")
    assert [row[-2] for row in summarize_setting(runs, "inner_steps").rows] == ["not finite", "0.4"]
