"""What the documentation shows and says."""

import importlib
import re
import sys

import pytest

from python_blocks import ROOT, run_page

DOCS = ROOT / "docs"


@pytest.mark.parametrize("page", ["index", "quickstart", "idea", "choosing", "stability"])
def test_examples(page):
    run_page(f"docs/{page}.md")


def test_navigation_has_every_page():
    configuration = (ROOT / "mkdocs.yml").read_text()
    listed = set(re.findall(r": ([\w/-]+\.md)$", configuration, re.MULTILINE))
    assert listed == {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}


class TestIdea:
    @pytest.fixture
    def idea(self, monkeypatch):
        monkeypatch.syspath_prepend(DOCS / "figures")
        yield importlib.import_module("idea")
        sys.modules.pop("idea")

    def test_script_draws_the_pictures_of_the_page(self, idea, monkeypatch, tmp_path):
        monkeypatch.setattr(idea, "TRAINING_STEPS", 1)
        idea.draw_all(tmp_path)
        drawn = {path.name for path in tmp_path.iterdir()}
        shown = re.findall(r"\(figures/(idea-[^)]+)\)", (DOCS / "idea.md").read_text())
        assert drawn == set(shown) == {path.name for path in (DOCS / "figures").glob("idea-*.svg")}

    @pytest.mark.parametrize(
        ("potential", "start", "expected"),
        [("square", 0.0, 0.32), ("absolute", 0.0, -0.1), ("hinge", -2.2, 3.0)],
    )
    def test_layers_of_the_pictures_end_at_the_minimum(self, idea, potential, start, expected):
        x = idea.torch.tensor([[-1.2], [-0.6], [-0.1], [0.5], [3.0]])
        layer = idea.pooling(getattr(idea, potential), start=start)
        assert layer(x).item() == pytest.approx(expected, abs=0.03)
