"""The tables and figures of the page about counting characters."""

from dataclasses import replace

import pytest
from figure_scripts import load_script

import tiny_omniglot as tiny
from equipool.report import read_runs
from equipool.training.artifacts import Examination, Gallery, Picture, Table
from run_records import changed, counting, rows, write_folder, written

script = load_script("omniglot")
figures = load_script("omniglot_figures")
BF16 = {"precision": "bf16-mixed"}


@pytest.fixture
def runs(tmp_path):
    slow = {"learning_rate": 3e-4}
    return written(
        tmp_path / "runs",
        counting([0.25, 0.75, 0.5], [0.125, 0.25, 0.375]),
        counting([0.25, 0.5, 0.75], [0.25, 0.375, 0.625], seed=1),
        changed(counting([0.1] * 3, [0.5, 0.5, 0.75], "equilibrium"), slow),
    )


@pytest.fixture
def solo(tmp_path):
    """With the same settings, except the last."""
    return written(
        tmp_path / "solo",
        counting([0.5], [0.5], seed=7, seconds=0.5),
        counting([0.5] * 2, [0.5] * 2, "equilibrium", seconds=2.0),
        changed(counting([0.5] * 2, [0.5] * 2, "equilibrium", seconds=0.25), BF16, batch_size=1024),
    )


@pytest.fixture
def groups(runs):
    return script.grouped(runs)


def test_accuracies_at_the_end_and_at_the_best_validation(groups):
    best, other = script.results(groups).rows
    assert best[:4] == ("equilibrium", "0.0003", "1", "75.0 %")  # best by the test
    assert other[3:] == (
        "50.0 ± 17.7 %",  # test: 0.375 and 0.625
        "25.0 ± 8.8 %",
        "43.8 ± 26.5 %",  # at the best validation: 0.25 and 0.625
        "21.9 ± 13.3 %",
        "75.0 ± 0.0 %",
    )
    assert script.percent([0.5, None]) == "not finite"


def test_costs_are_those_of_solo_runs(runs, solo):
    runs[:2] = replace(runs[0], spikes=1, skipped=2), replace(runs[1], spikes=4, skipped=8)
    best, other = script.costs(script.grouped(script.with_solo_times(runs, solo))).rows
    # 30 steps of 8 sets, half a second each; spikes and skipped steps of both seeds
    assert other == ("sum", "240", "15", "1,234", "5", "10")
    assert best[2] == "60"
    with pytest.raises(ValueError, match="no solo run has the settings of 2"):
        script.tables(runs, solo[:1], [], [], [], Examination())


def test_best_first_is_by_the_last_step_and_variants_are_told_apart(tmp_path):
    records = (
        counting([0.9, 0.1], [0.75, 0.25]),
        counting([0.5, 0.5], [0.5, 0.5], "attention"),
        changed(counting([0.1] * 2, [0.1] * 2), {"learning_rate": 0.01}),
    )
    found = [group.method for group in script.grouped(written(tmp_path / "runs", *records))]
    assert found == ["attention", "sum, learning_rate 0.001", "sum, learning_rate 0.01"]


def test_seconds_to_a_level(groups):
    """A run is evaluated after 10, 20 and 30 seconds."""
    table = script.times(groups)
    best, other = table.rows
    assert len(table.headings) == 10  # levels that were reached: 20 to 50, 60 and 70 %
    assert best[1:] == (*["10"] * 7, "30", "30")
    # 20 and 10 seconds, 30 and 20; one of them never has 40 %
    assert other[1:] == ("15", "15", "25", "25", *["-"] * 5)


def test_accuracy_by_number(groups):
    _, best, selected, other = rows(script.by_number(groups))
    assert (best["1"], best["2"], best["9"], best["10"]) == ("75.0", "37.5", "-", "7.5")
    assert (other["1"], other["10"]) == ("50.0", "5.0")  # of 0.375 and 0.625
    assert selected["1"] == "43.8"  # of 0.25 and 0.625


def test_throughput_is_measured_after_the_first_evaluation(solo):
    late = [entry | {"training_seconds": entry["training_seconds"] + 99} for entry in solo[1].curve]
    table = script.throughput([solo[2], replace(solo[1], curve=late), solo[0]])
    assert table.rows == (
        ("sum", "8", "32-true", "1 to 10", "500.00", "16"),
        ("equilibrium", "8", "32-true", "11 to 20", "2000.00", "4"),
        ("equilibrium", "1,024", "bf16-mixed", "11 to 20", "250.00", "4,096"),
    )


def test_tried_settings_are_ordered_by_the_best_of_each_method(tmp_path):
    for name, made, rate, fields in (
        ("a", counting([0.9, 0.3], [0.9, 0.3], "sum"), 1e-3, {}),
        ("b", counting([0.2], [0.2], "sum"), 3e-4, {}),
        ("c", counting([0.2], [0.2], "equilibrium"), 1e-3, {}),
        ("d", counting([0.4, 0.5], [0.4, 0.5], "equilibrium"), 3e-4, {}),
        ("e", counting([0.25], [0.25], "equilibrium"), 1e-3, {"solver.max_step": 2.0}),
    ):
        made = changed(made, {"learning_rate": rate, "steps": 99}, **fields)
        write_folder(tmp_path / name, made, [], record=False)  # not at its end
    table = script.settings(read_runs([tmp_path]))
    assert [(row[0], row[1], row[3], row[4]) for row in table.rows] == [
        ("equilibrium", "0.0003", "20", "50.0 %"),
        ("equilibrium, solver max step 2.0", "0.001", "10", "25.0 %"),
        ("equilibrium", "0.001", "10", "20.0 %"),
        ("sum", "0.001", "20", "30.0 %"),
        ("sum", "0.0003", "10", "20.0 %"),
    ]


def test_by_how_much_answers_are_wrong():
    """Of 10 sets of one character and 30 of three."""
    headings = ("true", "1", "2", "3", "4", "sets")
    shares = (
        ("1", 0.5, 0.2, 0.3, 0.0, 10), ("2", 0.0, 0.0, 0.0, 0.0, 0), ("3", 0.1, 0.2, 0.6, 0.1, 30),
    )  # fmt: skip
    examined = Examination(
        (
            Table(script.confusion_title("test"), headings, shares),
            Table(script.confusion_title("validation"), headings, shares[:2]),
            Table("Another table", headings, shares),
        )
    )
    validation, test = script.miscounts(examined).rows
    assert validation[3] == "50.0 %"
    assert test[1:] == ("7.5 %", "15.0 %", "57.5 %", "12.5 %", "7.5 %")


class TestFigures:
    @pytest.fixture
    def laid_out(self, monkeypatch):
        """The figures, laid out but not saved."""
        found = []

        def keep(*_, **__):
            found.append(figures.plt.gcf())
            found[-1].canvas.draw()

        monkeypatch.setattr(figures.plt, "savefig", keep)
        return found

    @pytest.fixture
    def data(self, tmp_path, monkeypatch):
        tiny.write_archive(tmp_path)
        monkeypatch.setenv("EQUIPOOL_DATA", str(tmp_path))

    def test_example_sets_have_their_numbers(self, data, tmp_path, monkeypatch):
        task = figures.OmniglotTask(image_size=8, validation_characters=10, evaluation_sets=300)
        monkeypatch.setattr(figures, "OmniglotTask", lambda: task)
        seen, shown = [], []
        monkeypatch.setattr(figures, "draw_set", lambda pixels, of: seen.append(of) or pixels)
        monkeypatch.setattr(figures, "draw_panels", lambda panels, file: shown.append(panels))
        figures.draw_sets(tmp_path / "sets.png")
        assert [len(set(of.tolist())) for of in seen] == list(range(1, 11))
        assert list(shown[0])[::9] == ["1 character", "10 characters"]
        first = task.data(figures.torch.device("cpu")).pools["test"].first
        assert all(int(of.min()) >= first for of in seen)

    def test_an_examination_of_a_network(self, data, tmp_path):
        task = figures.OmniglotTask(
            "sum", embedding=4, image_size=8, validation_characters=10, evaluation_sets=100
        )
        found = task.examine(task.network(), figures.torch.device("cpu"))
        figures.draw_examination(found, tmp_path)
        assert (tmp_path / "omniglot-wrong.png").read_bytes().startswith(b"\x89PNG")
        assert "true number" in (tmp_path / "omniglot-confusion.svg").read_text()
        other = Examination((), (Gallery("cats", (Picture("a cat", b""),)),))
        with pytest.raises(ValueError, match=r"\['cats'\]"):
            figures.draw_examination(other, tmp_path)

    def test_rows_of_the_confusion_are_the_true_numbers(self, laid_out, tmp_path):
        """A share that would be shown as 0.0 is left out."""
        shares = ("1", 0.7499, 0.25, 0.0001, 8), ("2", 0.001, 0.999, 0.0, 3)
        table = Table("", ("true", "1", "2", "3", "sets"), shares)
        figures.draw_confusion(table, tmp_path / "confusion.svg")
        (ax,) = laid_out[0].axes
        found = {text.get_position(): text.get_text() for text in ax.texts}  # answer, true
        assert found == {(0, 0): "75.0", (1, 0): "25.0", (0, 1): "0.1", (1, 1): "99.9"}
        assert [label.get_text() for label in ax.get_yticklabels()] == ["1", "2"]
