"""Figures are readable: few curves in a panel, all of them visible, the legend beside them."""

import itertools
from dataclasses import replace

import pytest

from equipool.report import read_runs
from equipool.report.figures import (
    GREY,
    MOST_CURVES,
    MOST_FACETS,
    draw_curves,
    draw_inner,
    draw_over_steps,
    facets,
    inner_curves,
)
from equipool.report.groups import group_runs, shorten
from equipool.report.runs import LOSS
from equipool.training import AtSteps
from run_records import FOUR_SETTINGS, changed, counting, record, write_folder, written
from run_records import log_point as point

INNER = {"residual": 0.1, "aux_loss": 0.2, "learning_rate": 0.3, "momentum": 0.4,
         "regularizer_weight": 0.5, "converged": 0.0}  # fmt: skip
METHODS = ("equilibrium", "sum", "max")
RATES, STEPS = (0.1, 0.01), (2, 5, 10)


@pytest.fixture
def several(tmp_path):
    """Three varied fields, two seeds each: eighteen groups."""
    chosen = list(itertools.product(METHODS, RATES, STEPS))
    made = [
        changed(record([9.0, 1.0 + i], method, seed=seed), {"learning_rate": rate}, inner_steps=n)
        for seed in (0, 1)
        for i, (method, rate, n) in enumerate(chosen)
    ]
    return group_runs(written(tmp_path / "several", *made))


def test_each_varied_field_but_one_makes_rows_of_panels(several, drawn):
    rows = facets(several)
    assert [set(row) for row in rows.values()] == [set(METHODS)] * len(RATES) * len(STEPS)
    found = [{(g.settings["learning_rate"], g.settings["inner_steps"]) for g in row.values()}
             for row in rows.values()]  # fmt: skip
    assert found == [{pair} for pair in sorted(itertools.product(RATES, STEPS))]
    for title, ((rate, steps),) in zip(rows, found, strict=True):
        assert str(rate) in title
        assert str(steps) in title
    draw_curves(several)
    (figure,) = drawn
    assert len(figure.axes) == 2 * len(rows)
    assert all(len(ax.lines) == len(METHODS) for ax in figure.axes)
    assert_legend_covers_no_panel(figure)


def assert_legend_covers_no_panel(figure):
    figure.canvas.draw()
    legend = figure.legends[0].get_window_extent()
    assert all(ax.get_legend() is None for ax in figure.axes)
    assert all(legend.y1 < ax.get_window_extent().y0 for ax in figure.axes)
    assert 0 <= legend.x0 < legend.x1 <= figure.bbox.x1


def test_no_picture_has_too_many_rows_and_no_group_is_lost(tmp_path):
    made = [
        changed(record([1.0], method), {"learning_rate": 0.1 * rate}, inner_steps=steps)
        for method, rate, steps in itertools.product(METHODS, range(1, 5), range(1, 4))
    ]
    groups = group_runs(written(tmp_path / "runs", *made))
    rows = facets(groups)
    assert 1 < len(rows) <= MOST_FACETS
    assert sum(map(len, rows.values())) == len(groups)


def test_one_setting_at_a_time_makes_one_row(tmp_path):
    made = [changed(record([2.0], "equilibrium"), **{name: 0.25}) for name in FOUR_SETTINGS]
    runs = written(tmp_path / "runs", record([1.0], "equilibrium"), *made)
    (row,) = facets(shorten(group_runs(runs))).values()
    assert len(row) == 5


def test_at_most_so_many_curves_are_coloured_and_the_best_are(tmp_path, drawn):
    """The largest rates are the best."""
    count = MOST_CURVES + 3
    made = [changed(record([99.0, count - i]), {"learning_rate": 0.1 + i}) for i in range(count)]
    draw_curves(group_runs(written(tmp_path / "runs", *made)))
    by_step = drawn[0].axes[0]
    coloured = [line for line in by_step.lines if line.get_color() != GREY.color]
    assert len(by_step.lines) == count
    ends = sorted(line.get_ydata()[-1] for line in coloured)
    assert ends == list(range(1, MOST_CURVES + 1))
    assert len({line.get_color() for line in coloured}) == MOST_CURVES
    assert len({line.get_marker() for line in coloured}) == MOST_CURVES
    names = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert len(names) == MOST_CURVES + 1
    assert names[-1].startswith("3 ")  # the rest, summarised


@pytest.mark.parametrize("better", ["lower", "higher"])
def test_all_panels_show_all_of_their_curves_on_one_scale(tmp_path, drawn, better):
    made = record if better == "lower" else lambda values, *more: counting(values, values, *more)
    records = [
        changed(made([0.01 * size, 0.02], name), embedding=size)
        for name, size in itertools.product(("sum", "max"), (1, 8, 50))
    ]
    draw_curves(group_runs(written(tmp_path / "runs", *records)))
    limits = {ax.get_ylim() for ax in drawn[0].axes}
    assert len(limits) == 1
    ((low, high),) = limits
    assert all(
        low < y < high for ax in drawn[0].axes for line in ax.lines for y in line.get_ydata()
    )
    scales = {ax.get_yscale() for ax in drawn[0].axes}
    assert scales == {"log" if better == "lower" else "linear"}


def test_means_and_the_range_over_the_seeds(tmp_path, drawn):
    runs = written(tmp_path / "runs", record([4.0, 1.0]), record([2.0, 2.0], seed=1))
    draw_curves(group_runs(runs))
    by_step, by_second = drawn[0].axes
    (line,) = by_step.lines
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([10, 20], [3.0, 1.5])
    assert list(by_second.lines[0].get_xdata()) == [10.0, 20.0]
    (band,) = by_step.collections
    corners = {tuple(corner) for corner in band.get_paths()[0].vertices}
    assert {(10, 2), (10, 4), (20, 1), (20, 2)} <= corners


def test_another_metric_is_drawn_on_request(tmp_path, drawn):
    draw_curves(group_runs(written(tmp_path / "a", counting([0.5], [0.25]))), "train_accuracy")
    assert list(drawn[0].axes[0].lines[0].get_ydata()) == [0.125]


def test_an_unfinished_run_is_drawn_by_itself_and_ends_in_a_cross(tmp_path, drawn):
    finished, other = written(tmp_path / "runs", record([4.0, 2.0]), record([4.0, 3.0], seed=1))
    stopped = replace(other, complete=False, steps=15, curve=other.curve[:1])
    draw_curves(group_runs([finished, stopped]))
    by_step = drawn[0].axes[0]
    curves = [list(line.get_ydata()) for line in by_step.lines]
    assert [4.0, 2.0] in curves  # not cut to the steps of the unfinished one
    (cross,) = [line for line in by_step.lines if line.get_marker() == "x"]
    assert (list(cross.get_xdata()), list(cross.get_ydata())) == ([10], [4.0])


def test_the_loss_of_a_run_that_was_never_evaluated_is_drawn(tmp_path, drawn):
    made = record([1.0])
    made.curve.clear()
    write_folder(tmp_path / "run", made, [point(1), point(2)], record=False)
    draw_curves(group_runs(read_runs([tmp_path]), evaluated=False), LOSS)
    assert [1.0, 0.5] in [list(line.get_ydata()) for line in drawn[0].axes[0].lines]


def test_a_long_log_is_averaged(tmp_path, drawn):
    points = [point(step) | {"loss": 1.0 + step % 2} for step in range(1, 3001)]
    write_folder(tmp_path / "run", record([1.0]), points)
    draw_curves(group_runs(read_runs([tmp_path])), LOSS)
    (line,) = drawn[0].axes[0].lines
    assert len(line.get_ydata()) <= 150
    assert line.get_ydata() == pytest.approx([1.5] * len(line.get_ydata()))
    assert line.get_xdata()[-1] == 3000


def test_inner_statistics_are_those_of_the_log(tmp_path, drawn):
    two = point(10, inner={"first": INNER, "second": INNER})
    points = [two, point(20, inner={"first": INNER | {"residual": 0.5}})]
    write_folder(tmp_path / "run", record([1.0], "equilibrium"), points)
    curves = inner_curves(group_runs(read_runs([tmp_path / "run"])))
    first, second = curves.values()
    assert [(p.step, p.mean) for p in first["residual"]] == [(10, 0.1), (20, 0.5)]
    assert [(p.step, p.mean) for p in second["residual"]] == [(10, 0.1)]
    assert all("first" in label or "second" in label for label in curves)
    draw_inner(curves)
    used = [ax for ax in drawn[0].axes if ax.lines]
    assert len(used) == len(INNER)
    assert inner_curves(group_runs(written(tmp_path / "more", record([1.0])))) == {}


def test_labels_of_millions_of_steps_do_not_overlap(tmp_path, drawn):
    made = record([2.0, 1.0])
    for entry, step in zip(made.curve, (500_000, 1_000_000), strict=True):
        entry["step"] = step
    draw_curves(group_runs(written(tmp_path / "runs", made)))
    (figure,) = drawn
    figure.canvas.draw()
    labels = [label for label in figure.axes[0].get_xticklabels() if label.get_text()]
    assert "1M" in [label.get_text() for label in labels]
    boxes = [label.get_window_extent() for label in labels]
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def test_over_steps_the_spread_is_drawn_where_it_was_measured(drawn):
    rows = [AtSteps(n, {"mse": 1.0 / n}, 0.1 / n, 0.2, 0.5, spread=0.3 / n) for n in (1, 10)]
    plain = [replace(row, spread=None) for row in rows]
    draw_over_steps({"a": rows, "b": plain}, "mse")
    draw_over_steps({"b": plain}, "mse")
    both, without = drawn
    assert len(both.axes) == 3
    assert list(both.axes[2].lines[0].get_ydata()) == pytest.approx([0.3, 0.03])
    assert len(without.axes) == 2
    assert_legend_covers_no_panel(both)
