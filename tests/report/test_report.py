"""The report: its numbers are those of the runs."""

import json
import re

import numpy as np
import pytest

from equipool.report import figures, read_runs, results
from equipool.report.page import write_page


def rows(runs):
    return results(runs).set_index("method").to_dict("index")


def test_means_and_deviations_over_seeds_best_first(make, runs):
    make("a", [4.0, 3.0], seed=0)
    make("b", [4.0, 1.0], seed=1)
    make("c", [0.5, 1.0], aggregation="max", seconds=30.0)
    found = rows(runs())
    assert list(found) == ["max", "sum"]
    assert (found["sum"]["mse"], found["max"]["mse"]) == ("2 ± 1.41", "1")
    assert (found["sum"]["best mse"], found["max"]["best mse"]) == ("2 ± 1.41", "0.5")
    assert (found["sum"]["training seconds"], found["sum"]["runs"]) == ("20 ± 0", "2")


def test_what_is_not_finite_is_not_averaged_away(make, runs):
    make("a", [1.0, None])
    make("b", [None, None], seed=1)
    assert rows(runs())["sum"] | {"training seconds": ""} == {
        "mse": "not finite", "best mse": "not finite", "training seconds": "", "runs": "2",
    }  # fmt: skip


def test_methods_are_named_by_the_settings_that_vary_in_them(make, runs):
    make("a", [1.0], aggregation="equilibrium", solver="nesterov")
    make("b", [2.0], aggregation="equilibrium", solver="newton:damping=0.1")
    make("c", [3.0], batch_size=4)
    assert list(rows(runs())) == [
        "equilibrium, solver nesterov", "equilibrium, solver newton:damping=0.1", "sum",
    ]  # fmt: skip
    make("d", [1.0], batch_size=4, embedding=4)
    assert list(rows(runs()))[-1] == "sum, embedding 8"


def test_runs_are_found_once_at_any_depth_and_stay_apart(make, runs, tmp_path):
    folder = make("deep/a", [1.0])
    make("other/a", [3.0], seed=1)
    found = read_runs([tmp_path, folder, tmp_path / "runs"])
    assert found.table["run"].nunique() == len(found.table) == 2
    assert rows(found)["sum"]["mse"] == "2 ± 1.41"
    assert len(read_runs([folder / "record.json"]).curves) == 1


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", {}, "contains no finished run"),
        ("record.json", {}, "not the record of a run"),
        ("runs/a/record.json", {"task": "omniglot"}, "the tasks median, omniglot, expected one"),
    ],
)
def test_what_cannot_be_compared_is_named(make, tmp_path, file, content, message):
    file = tmp_path / file
    if file.parent != tmp_path:
        content = json.loads((make("a", [1.0]) / "record.json").read_text()) | content
        make("b", [1.0])
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        read_runs([tmp_path])


def test_curves_are_means_at_the_steps_that_all_runs_have(make, runs, drawn):
    make("a", [4.0, 2.0, 1.0])
    make("b", [2.0, 1.0, None], seed=1)
    figures.draw_curves(runs())
    lines = drawn[0].axes[0].lines
    points = {tuple(line.get_xdata()): list(line.get_ydata()) for line in lines}
    assert points == {(10, 20): [3.0, 1.5]}


def test_the_effect_of_a_setting_is_drawn_in_the_order_of_its_values(make, runs, drawn):
    make("a", [1.0], bias_std=16.0)
    make("b", [3.0], bias_std=0.0)
    make("c", [5.0], bias_std=0.0, seed=1)
    assert figures.varied_numbers(runs()) == ["bias_std"]
    figures.draw_setting(runs(), "bias_std")
    scores, cost = (ax.lines[0] for ax in drawn[0].axes)
    assert list(scores.get_xdata()) == ["0.0", "16.0"]
    assert list(scores.get_ydata()) == [4.0, 1.0]
    assert np.allclose(cost.get_ydata(), 1.0)


def test_the_page_is_one_file_with_what_there_is(make, runs, tmp_path):
    make("a", [2.0, 1.0], width=4)
    make("b", [2.0, 3.0], width=8)
    write_page(runs(), tmp_path / "pages" / "page.html")
    html = (tmp_path / "pages" / "page.html").read_text()
    titles = ["Results", "By setting", "Runs", "Settings"]
    assert re.findall("<h2>(.*?)</h2>", html) == titles
    assert len(re.findall('<img src="data:image/png;base64,', html)) == html.count("<img") == 2
    assert not re.search(r"http|url\(|<(script|link|iframe)", html)
