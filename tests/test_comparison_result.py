"""What a comparison of gradients looks like: text, tables, numbers and a picture."""

import ast
import json
import math
import re
import sys
from pathlib import Path

import pytest

import equipool.comparison
from equipool.comparison import Agreement, GradientComparison, GradientRow, Seconds
from equipool.comparison.result import percent


def make_comparison():
    rows = (
        GradientRow("Unrolled()", Agreement(1.0, 1e-7), Agreement(0.999999, 2e-7),
                    Seconds(0.25, 0.2, 0.3), 3 * 2**20, 0.5, None),
        GradientRow("Other(1)", None, Agreement(math.nan, math.nan),
                    Seconds(0.001, 0.0005, 0.002), 2**19, 1.0, 0.25),
        GradientRow("Third()", Agreement(0.5, 0.0), Agreement(0.5, math.inf),
                    Seconds(0.001, 0.0005, 0.002), 2**19, 0.999, 0.0),
    )  # fmt: skip
    return GradientComparison(rows, "a setting")


class TestResult:
    def test_as_text_has_aligned_columns(self):
        setting, blank, *lines = str(make_comparison()).splitlines()
        assert (setting, blank) == ("a setting", "")
        ends = [[match.end() for match in re.finditer(r"\S+(?: \S+)*", line)] for line in lines]
        assert ends[0][1:] == ends[3][1:]
        assert lines[1].split()[:3] == ["Unrolled()", "1.0000", "1e-07"]
        assert "0.9999" in lines[1]
        assert "250" in lines[1]
        assert "200-300" in lines[1]
        assert lines[2].count("not finite") == 2
        assert lines[2].endswith("100 %       25 %")

    def test_as_markdown_has_the_same_cells(self):
        heading, rule, *lines = make_comparison().markdown().splitlines()
        assert len({line.count("|") for line in (heading, rule, *lines)}) == 1
        first = [cell.strip() for cell in lines[0].strip("|").split("|")]
        assert first[0] == "`Unrolled()`"
        assert first[1:] == make_comparison().rows[0].cells()[1:]

    def test_as_numbers_alone(self):
        content = json.loads(json.dumps(make_comparison().as_dict()))
        assert content["setting"] == "a setting"
        assert content["rows"][0]["parameters"] == {"cosine": 1.0, "relative_error": 1e-7}
        assert content["rows"][1]["parameters"] is None

    def test_part_of_the_sets_is_never_shown_as_none_or_all(self):
        assert [percent(f) for f in (0.0, 1e-4, 0.25, 0.9999, 1.0)] == [
            "0 %", "< 1 %", "25 %", "> 99 %", "100 %",
        ]  # fmt: skip

    @pytest.mark.parametrize("ending", ["svg", "png"])
    def test_plot(self, tmp_path, ending):
        file = tmp_path / f"comparison.{ending}"
        make_comparison().plot(str(file))
        assert file.stat().st_size > 1000
        if ending == "svg":
            text = file.read_text()
            assert "Other(1), 25 % fell back" in text
            assert "not finite" in text
            first = file.read_bytes()
            make_comparison().plot(file)
            assert file.read_bytes() == first

    def test_plot_without_matplotlib_says_what_to_install(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(ModuleNotFoundError, match=r'pip install "equipool\[report\]"'):
            make_comparison().plot(tmp_path / "comparison.svg")

    def test_comparing_alone_needs_no_matplotlib(self):
        """It is imported by the function that draws."""
        for path in Path(equipool.comparison.__file__).parent.glob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            outside = [ast.unparse(node) for node in tree.body
                       if isinstance(node, ast.Import | ast.ImportFrom)]  # fmt: skip
            assert not any("matplotlib" in line for line in outside)
