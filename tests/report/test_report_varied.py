"""One setting against what came of it."""

from dataclasses import replace

import pytest
from records import record, write_records

from equipool.report import read_runs
from equipool.report.groups import group_runs
from equipool.report.varied import draw_varied, lines_of, summarize_varied, varied_settings


def made(values, inner_steps, aggregation="equilibrium", seed=0, seconds=1.0):
    one = record(values, aggregation=aggregation, seed=seed, seconds_per_step=seconds)
    fields = one.config["fields"] | {"inner_steps": inner_steps}
    return replace(one, config=one.config | {"fields": fields})


@pytest.fixture
def runs(tmp_path):
    """Of 10, 2 and 1 inner steps, one of them with two seeds, and a sum."""
    return read_runs(
        write_records(
            tmp_path,
            made([0.2, 0.3], 10, seconds=2.0),
            made([0.5, 0.4], 2, seed=0),
            made([0.6, 0.9], 2, seed=1, seconds=3.0),
            made([0.9, 0.8], 1),
            made([0.7, 0.7], 5, aggregation="sum", seconds=0.5),
        )
    )


def test_rows_are_in_the_order_of_the_values(runs):
    found = summarize_varied(runs, "inner_steps")
    assert found.title == "median: inner_steps"
    assert found.headings == (
        "aggregation", "embedding", "inner_steps", "runs", "best mse", "seconds a step"
    )  # fmt: skip
    assert found.rows == (
        ("equilibrium", "8", "1", "1", "0.8", "1"),
        ("equilibrium", "8", "2", "2", "0.5 ± 0.141", "2 ± 1.41"),
        ("equilibrium", "8", "10", "1", "0.2", "2"),
        ("sum", "8", "-", "1", "0.7", "0.5"),
    )


def test_a_method_to_which_the_setting_means_nothing_is_a_line_across(runs):
    lines = lines_of(group_runs(runs), "inner_steps")
    assert [(line.method, len(line.groups), line.across) for line in lines] == [
        ("equilibrium", 3, False),
        ("sum", 1, True),
    ]
    two = [run for run in runs if run.name in ("0", "4")]
    single = lines_of(group_runs(two, ["inner_steps"]), "inner_steps")
    assert [line.across for line in single] == [False, False]


def test_settings_of_several_values(runs):
    assert varied_settings(group_runs(runs)) == ["inner_steps"]
    assert varied_settings(group_runs(runs[1:3])) == []


def test_what_each_method_has_its_own_value_of_was_not_varied(tmp_path):
    """As where learning rates were chosen for each."""
    records = [record([0.5], name) for name in ("equilibrium", "sum", "mean")]
    for one, rate in zip(records, (1e-3, 3e-4, 1e-3), strict=True):
        one.config["training"]["learning_rate"] = rate
    runs = read_runs(write_records(tmp_path, *records))
    assert [group.method for group in group_runs(runs)] == ["equilibrium", "sum", "mean"]
    groups = group_runs(runs, ["learning_rate"])
    assert [group.settings["learning_rate"] for group in groups] == [1e-3, 3e-4, 1e-3]
    assert varied_settings(groups) == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (("gcn", "gin"), []),
        ((True, False), []),
        ((None, 0.5), []),
        ((None, 0.5, 2), ["chosen"]),
        (([60, 30], [6, 3]), ["chosen"]),
    ],
)
def test_settings_that_are_names_are_not_drawn(tmp_path, values, expected):
    records = []
    for value in values:
        one = record([0.5])
        fields = one.config["fields"] | {"chosen": value}
        records.append(replace(one, config=one.config | {"fields": fields}))
    assert varied_settings(group_runs(read_runs(write_records(tmp_path, *records)))) == expected


def test_the_picture_has_a_point_for_each_run_and_says_the_values(runs, monkeypatch):
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *place, **options: drawn.append(self))
    draw_varied(group_runs(runs), "inner_steps")
    (figure,) = drawn
    for ax, heading, across in zip(
        figure.axes, ("best mse", "seconds a step"), (0.7, 0.5), strict=True
    ):
        assert ax.get_title(loc="left") == heading
        assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2", "10"]
        by_label = {line.get_label(): line for line in ax.lines}
        assert set(by_label["sum"].get_ydata()) == {across}
        dots = [(x, y) for line in ax.lines if line.get_marker() == "o"
                for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)]  # fmt: skip
        assert len(dots) == 4
    score, seconds = figure.axes
    means = {line.get_label(): list(line.get_ydata()) for line in score.lines}
    assert means["equilibrium"] == pytest.approx([0.8, 0.5, 0.2])
    means = {line.get_label(): list(line.get_ydata()) for line in seconds.lines}
    assert means["equilibrium"] == pytest.approx([1, 2, 2])


def test_a_run_that_never_was_finite_leaves_a_gap(tmp_path):
    files = write_records(tmp_path, made([None, None], 1), made([0.5, 0.4], 2))
    runs = read_runs(files)
    assert draw_varied(group_runs(runs), "inner_steps").startswith(b"\x89PNG")
    assert [row[-2] for row in summarize_varied(runs, "inner_steps").rows] == ["not finite", "0.4"]
