"""The pictures of the page about counting characters."""

import pytest

import tiny_omniglot as tiny
from equipool.experiments.omniglot.evaluation import png_of
from equipool.training.examination import Examination, Gallery, Picture, Table


class TestPictures:
    @pytest.fixture
    def figures(self, script, monkeypatch):
        """What would be saved."""
        found = []

        def keep(*_, **__):
            found.append(script.plt.gcf())
            found[-1].canvas.draw()  # which puts everything in its place

        monkeypatch.setattr(script.plt, "savefig", keep)
        return found

    def test_curves(self, script, groups, tmp_path):
        script.draw_curves(groups, tmp_path / "curves.svg")
        drawn = (tmp_path / "curves.svg").read_text()
        for told in ("equilibrium", "sum", "test characters", "train characters", "training steps"):
            assert told in drawn
        script.draw_curves(groups, tmp_path / "again.svg")
        assert (tmp_path / "again.svg").read_text() == drawn

    def test_curves_show_the_test_solid(self, script, runs, alone, figures, tmp_path):
        script.draw_curves(script.grouped(script.timed(runs, alone)), tmp_path / "curves.svg")
        by_step, by_second = figures[0].axes
        drawn = {(line.get_linestyle(), tuple(line.get_ydata())) for line in by_step.lines}
        assert {("-", (0.5, 0.5, 0.75)), ("--", (0.25, 0.25, 0.375))} <= drawn
        assert list(by_step.lines[0].get_xdata()) == [10, 20, 30]
        assert list(by_second.lines[0].get_xdata()) == [20, 40, 60]  # seconds of a run alone

    def test_the_legend_covers_no_curve(self, script, groups, figures, tmp_path):
        script.draw_curves(groups, tmp_path / "curves.svg")
        _, by_second = figures[0].axes
        legend = by_second.get_legend().get_window_extent()
        assert by_second.get_window_extent().x1 <= legend.x0
        assert legend.x1 <= figures[0].bbox.x1

    @pytest.fixture
    def small(self, script, tmp_path, monkeypatch):
        """The script's task, on made-up characters."""
        tiny.write_archive(tmp_path)
        monkeypatch.setenv("EQUIPOOL_DATA", str(tmp_path))
        task = script.OmniglotTask(image_size=8, validation_characters=10, evaluation_sets=300)
        monkeypatch.setattr(script, "OmniglotTask", lambda: task)
        return task

    def test_example_sets(self, script, small, tmp_path):
        script.draw_sets(tmp_path / "sets.png")
        assert (tmp_path / "sets.png").read_bytes().startswith(b"\x89PNG")

    def test_example_sets_are_of_their_numbers(self, script, small, tmp_path, monkeypatch):
        seen, shown = [], []
        monkeypatch.setattr(script, "draw_set", lambda pixels, of: seen.append(of) or pixels)
        monkeypatch.setattr(script, "draw_panels", lambda panels, file: shown.append(panels))
        script.draw_sets(tmp_path / "sets.png")
        assert [len(set(of.tolist())) for of in seen] == list(range(1, 11))
        assert list(shown[0])[::9] == ["1 character", "10 characters"]
        first = small.data(script.torch.device("cpu")).pools["test"].first
        assert all(int(of.min()) >= first for of in seen)

    def test_an_examination(self, script, tmp_path, monkeypatch):
        """As a network of the task leaves it: what is drawn is of the test characters."""
        tiny.write_archive(tmp_path)
        monkeypatch.setenv("EQUIPOOL_DATA", str(tmp_path))
        task = script.OmniglotTask(
            "sum", embedding=4, image_size=8, validation_characters=10, evaluation_sets=100
        )
        found = task.examine(task.network(), script.torch.device("cpu"))
        shown = []
        with monkeypatch.context() as patched:
            for name in ("draw_confusion", "draw_wrong"):
                patched.setattr(script, name, lambda content, file: shown.append(content))
            script.draw_examination(found, tmp_path)
        assert shown == [found.tables[2], found.galleries[1].pictures]
        script.draw_examination(found, tmp_path)
        assert (tmp_path / "omniglot-wrong.png").read_bytes().startswith(b"\x89PNG")
        assert "true number" in (tmp_path / "omniglot-confusion.svg").read_text()

    def test_wrong_answers_have_their_captions(self, script, tmp_path, monkeypatch):
        shown = []
        monkeypatch.setattr(script, "draw_panels", lambda panels, file: shown.append(panels))
        image = script.torch.full((2, 3, 3), 255, dtype=script.torch.uint8)
        script.draw_wrong([Picture("3 taken for 4", png_of(image))], tmp_path / "wrong.png")
        assert {title: pixels.shape for title, pixels in shown[0].items()} == {
            "3 taken for 4": (2, 3, 3)
        }

    def test_rows_of_the_confusion_are_the_true_numbers(self, script, figures, tmp_path):
        """A share that would be told as 0.0 is not."""
        shares = ("1", 0.7499, 0.25, 0.0001, 8), ("2", 0.001, 0.999, 0.0, 3)
        table = Table("", ("true", "1", "2", "3", "sets"), shares)
        script.draw_confusion(table, tmp_path / "confusion.svg")
        (ax,) = figures[0].axes
        told = {text.get_position(): text.get_text() for text in ax.texts}  # said, true
        assert told == {(0, 0): "75.0", (1, 0): "25.0", (0, 1): "0.1", (1, 1): "99.9"}
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("said", "true number of characters")
        assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2", "3"]
        assert [label.get_text() for label in ax.get_yticklabels()] == ["1", "2"]

    def test_another_examination_is_refused(self, script, tmp_path):
        other = Examination((), (Gallery("cats", (Picture("a cat", b""),)),))
        with pytest.raises(ValueError, match=r"the examination has \['cats'\], expected 'What"):
            script.draw_examination(other, tmp_path)
