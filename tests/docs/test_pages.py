"""The documentation: its tables are those of the records, and its examples run."""

import importlib
import re

import pytest

from python_blocks import ROOT, run_page

DOCS = ROOT / "docs"
EXAMPLES = ["index", "quickstart", "idea", "choosing", "stability", "large-sets", "uncertainty"]
EXAMPLES += ["influence", "equilibrium", "streams", "location"]
NUMBER = re.compile(r"\d[\d.]*(?:e[+-]\d+)?")


@pytest.fixture(scope="module")
def build():
    """docs/figures/build.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS / "figures")
        yield importlib.import_module("build")


def pages_with_tables():
    marked = (path for path in (*DOCS.rglob("*.md"), ROOT / "README.md"))
    return sorted(path for path in marked if "<!-- generated: " in path.read_text())


@pytest.mark.parametrize("page", pages_with_tables(), ids=lambda page: page.stem)
def test_generated_tables_are_those_of_the_records(build, page):
    blocks = {(DOCS / name).resolve(): found for name, found in build.BLOCKS.items()}[page]
    text = page.read_text(encoding="utf-8")
    assert build.fill(text, blocks()) == text, "run: make figures"


def test_the_pictures_of_the_pages_are_drawn(build, tmp_path, monkeypatch):
    """Those that the library draws itself; the others are drawn from records."""
    monkeypatch.setattr(importlib.import_module("drawing"), "FIGURES", tmp_path)
    monkeypatch.setattr(build.idea, "TRAINING_STEPS", 1)
    build.idea.draw()
    build.closed_forms.draw()
    drawn = {path.name for path in tmp_path.iterdir()}
    pages = [(DOCS / f"{name}.md").read_text() for name in ("idea", "closed-forms")]
    assert drawn == set(re.findall(r"\(figures/([\w-]+\.png)\)", "".join(pages)))


@pytest.mark.parametrize("page", ["median", "omniglot", "molecules"])
def test_short_tables_of_results_have_the_numbers_of_the_generated_ones(page):
    text = (DOCS / "reproduction" / f"{page}.md").read_text(encoding="utf-8")
    short, generated = text.split("## Results")[1].split("<!-- generated: results -->")
    rows = [line for line in short.splitlines() if line.startswith("|")]
    shown = set(NUMBER.findall(" ".join(rows)))
    assert len(shown) > 5
    assert shown <= set(NUMBER.findall(generated.split("<!-- end -->")[0]))


@pytest.mark.parametrize("page", [*(f"docs/{name}.md" for name in EXAMPLES), "README.md"])
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some of them write files
    monkeypatch.setattr("equipool.estimators.base.usual_steps", lambda count, size: 5)
    run_page(page)


def test_navigation_has_every_page():
    listed = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "records/README.md"])
def test_links_lead_to_files(page):
    prose = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)#]+)", prose) if "://" not in link]
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_commands_are_targets(page):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make ([a-z-]+)", (ROOT / page).read_text(), re.MULTILINE):
        assert re.search(rf"^[a-z -]*\b{target}\b.*:", makefile, re.MULTILINE), target
