"""The demonstration as a user meets it."""

import base64
import re
import struct

import pytest
import torch

from equipool import extras
from equipool.demo.__main__ import NEEDED, main
from equipool.demo.page import about_curves, about_energy, bin_means, rows, show
from equipool.demo.study import Paths, Plan, Result

SMALL = {
    "width": 8, "channels": 4, "inner_steps": 2, "batch_size": 4, "set_size": 10, "test_sets": 20,
    "path_sets": 10, "inner_steps_shown": 6, "grid": 7,
}  # fmt: skip
PICTURES = ("learning-curves.png", "energy.png", "landscape.png")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a short run, in a new folder."""
    return show(Plan(steps=3, **SMALL), tmp_path_factory.mktemp("demo") / "new" / "folder")


def text_of(page):
    return " ".join(re.sub(r"<[^>]*>", " ", page.read_text(encoding="utf-8")).split())


class TestCommand:
    def test_writes_pictures_and_page(self, tmp_path, capsys, monkeypatch):
        monkeypatch.setattr("equipool.demo.study.Plan", lambda **given: Plan(**given, **SMALL))
        assert main(["--steps", "2", "--seed", "1", "--out", str(tmp_path)]) == 0
        printed = capsys.readouterr().out
        assert str(tmp_path / "index.html") in printed.replace("\n", "")
        assert "equilibrium" in printed
        assert "sum pooling" in printed
        assert sorted(file.name for file in tmp_path.iterdir()) == sorted(
            (*PICTURES, "explorer.html", "index.html")
        )

    def test_can_be_stopped(self, tmp_path, capsys, monkeypatch):
        def stopped(plan, out):
            raise KeyboardInterrupt

        monkeypatch.setattr("equipool.demo.page.show", stopped)
        assert main(["--out", str(tmp_path)]) == 130
        assert "stopped" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("absent", "expected"),
        [
            ({"rich"}, 'needs rich. Run: pip install "equipool[cli]"'),
            ({"matplotlib"}, 'needs matplotlib. Run: pip install "equipool[report]"'),
            ({"jinja2", "rich"}, 'needs jinja2 and rich. Run: pip install "equipool[report,cli]"'),
        ],
    )
    def test_names_missing_extras(self, absent, expected, monkeypatch, capsys, tmp_path):
        monkeypatch.setattr(extras, "find_spec", lambda name: None if name in absent else object())
        assert main(["--out", str(tmp_path / "out")]) == 1
        assert expected in capsys.readouterr().err
        assert not (tmp_path / "out").exists()

    def test_nothing_is_missing_here(self):
        assert extras.advice("The demonstration", NEEDED) is None

    @pytest.mark.parametrize(
        "arguments",
        [["--steps", "0"], ["--seconds", "0"], ["--seconds", "nan"],
         ["--steps", "2", "--seconds", "2"]],
    )  # fmt: skip
    def test_bad_budgets_are_refused(self, arguments, capsys):
        with pytest.raises(SystemExit):
            main(arguments)
        assert arguments[0] in capsys.readouterr().err


class TestPage:
    def test_stands_alone(self, page):
        html = page.read_text(encoding="utf-8")
        sources = re.findall(r'(?:src|href)="([^"]*)"', html)
        assert len(sources) == 3
        assert all(source.startswith("data:image/png;base64,") for source in sources)
        assert not re.search(r"https?://|url\(|@import", html)

    def test_holds_the_pictures_that_were_written(self, page):
        html = page.read_text(encoding="utf-8")
        embedded = [base64.b64decode(data) for data in re.findall(r"base64,([^\"]*)", html)]
        assert embedded == [(page.parent / name).read_bytes() for name in PICTURES]
        for picture in embedded:
            assert picture[:8] == b"\x89PNG\r\n\x1a\n"
            assert min(struct.unpack(">II", picture[16:24])) > 400

    def test_has_the_results_and_the_settings(self, page):
        text = text_of(page)
        assert "trained for 3 steps" in text
        assert "seed 0" in text
        assert f"torch {torch.__version__}" in text
        assert len(re.findall(r"\d\.\d\de-\d\d", text)) == 2  # the two test errors
        assert re.search(r"it holds [\d.]+% of the path.{1,5}s squared distance", text)


def result(method, error, steps=100, seconds=10.0):
    return Result(method, f"{method} (here)", 1234, torch.ones(steps), seconds, error)


class TestSentences:
    def test_name_the_lower_error_whichever_it_is(self):
        ours = about_curves([result("equilibrium", 1e-4), result("sum pooling", 3e-4)])
        theirs = about_curves([result("equilibrium", 3e-4), result("sum pooling", 1e-4)])
        assert "error of equilibrium is 3.0 times lower than that of sum pooling" in ours
        assert "error of sum pooling is 3.0 times lower than that of equilibrium" in theirs

    @pytest.mark.parametrize("error", [1.05e-4, 0.96e-4])
    def test_call_nearly_equal_errors_the_same(self, error):
        text = about_curves([result("equilibrium", 1e-4), result("sum pooling", error)])
        assert "about the same" in text
        assert "lower" not in text

    def test_an_error_that_is_not_finite_wins_nothing(self):
        text = about_curves([result("equilibrium", float("nan")), result("sum pooling", 1e-4)])
        assert "not finite" in text
        assert "lower" not in text

    def test_tell_steps_from_seconds(self):
        same_steps = result("sum", 2e-4, 100, 4.0)
        same_time = result("sum", 5e-5, 500, 10.0)
        text = about_curves([result("equilibrium", 1e-4), same_steps, same_time])
        assert "After 100 steps each" in text
        assert "100 and 500 steps" in text
        assert "5.0 times as long" in text

    def test_ratios_are_to_the_first_network(self):
        found = rows([result("equilibrium", 2e-4), result("sum", 3e-4)])
        assert [row[-1] for row in found] == ["1.00", "1.50"]
        assert found[1][0] == "sum (here)"

    @pytest.mark.parametrize(
        ("last", "expected"),
        [(4.0, "worse"), (0.25, "better"), (1.05, "as good"), (float("nan"), "not finite"),
         (float("inf"), "not finite")],
    )  # fmt: skip
    def test_tell_what_a_longer_search_does(self, last, expected):
        energy = torch.tensor([[3.0, 3, 3], [2, 2, 4], [1, 5, 5]])
        text = about_energy(Paths(1, torch.zeros(3, 3, 2), energy), torch.tensor([9.0, 1, last]))
        assert expected in text
        assert "in 2 of 3 sets, and from there to step 2 in 1 of them" in text


@pytest.mark.parametrize(("count", "bins"), [(1, 1), (3, 3), (40, 5), (103, 5)])
def test_bins_cover_the_whole_series(count, bins):
    values = torch.rand(count)
    ends, means = bin_means(values, 5)
    assert len(ends) == bins
    assert ends[-1] == count
    sizes = torch.diff(ends, prepend=torch.zeros(1))
    assert (means * sizes).sum().item() == pytest.approx(values.double().sum().item())
