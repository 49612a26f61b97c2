"""The page on closed forms, and the script that draws its pictures."""

import doctest
import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


class TestPage:
    """The page on closed forms: its examples give what it says, its pictures are what its script
    draws."""

    page = (DOCS / "closed-forms.md").read_text(encoding="utf-8")

    def test_examples(self):
        blocks = re.findall(r"^```pycon\n(.*?)^```", self.page, flags=re.DOTALL | re.MULTILINE)
        examples = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "page", None, 0)
        assert len(examples.examples) > 30
        complaints = []
        runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
        runner.run(examples, out=complaints.append)
        assert not complaints, "".join(complaints)

    def test_pictures(self, tmp_path):
        pytest.importorskip("matplotlib")
        figures = runpy.run_path(str(DOCS / "figures" / "closed_forms.py"))
        figures["draw_all"](tmp_path)
        drawn = {path.name for path in tmp_path.iterdir()}
        assert drawn == set(re.findall(r"\(figures/(closed-forms-[^)]+)\)", self.page))
        assert all((DOCS / "figures" / name).is_file() for name in drawn)
        assert all(path.stat().st_size < 100_000 for path in tmp_path.iterdir())
        for case in figures["CASES"]:
            y = case.layer(figures["SET"]).item()
            assert abs(y - case.exact) < 0.11, f"the picture of {case.title} ends beside the answer"
