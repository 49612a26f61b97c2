"""The scripts in docs/figures as modules, and checks that a page has the numbers of its records."""

import importlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "figures"
sys.path.insert(0, str(FIGURES))  # as when a script is run

BLOCK = re.compile(r"<!-- generated: (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)


def load_script(name):
    return importlib.import_module(name)


def page_text(name):
    """A page of the documentation; nothing if there is none."""
    file = ROOT / "docs" / "reproduction" / f"{name}.md"
    return file.read_text(encoding="utf-8") if file.exists() else ""


def needs_page(name):
    """Skip if the page, or its folder of records, does not exist."""
    missing = not page_text(name) or not (ROOT / "records" / name).is_dir()
    return pytest.mark.skipif(missing, reason=f"there is no page of {name}, or no records")


def check_page(name, tables):
    """The generated tables of the page have the cells that the records give, whatever the words
    around them and in their headings; the pictures of the page exist."""
    blocks = dict(BLOCK.findall(page_text(name)))
    assert "results" in blocks
    for block, text in blocks.items():
        table = tables[block]
        if isinstance(table, str):
            assert text.strip() == table, _hint(name)
        else:
            lines = [line.strip("| ") for line in text.splitlines() if line.startswith("|")]
            cells = [tuple(cell.strip() for cell in line.split(" | ")) for line in lines[2:]]
            assert cells == list(table.rows), _hint(name)
    shown = set(re.findall(rf"\(\.\./figures/({name}-[^)]+)\)", page_text(name)))
    assert shown
    assert shown <= {file.name for file in FIGURES.iterdir()}


def _hint(name):
    return f"run: python docs/figures/{name}.py"


def use_folder(script, folder, monkeypatch, *names):
    """Let the script read `folder/records`, and write to `folder/figures` and to a page that has a
    block for each of these tables; returns the folder of records."""
    records, figures, page = folder / "records", folder / "figures", folder / "page.md"
    for name, value in {"RECORDS": records, "FIGURES": figures, "PAGE": page}.items():
        monkeypatch.setattr(script, name, value)
    figures.mkdir()
    page.write_text("".join(f"<!-- generated: {name} -->\n<!-- end -->\n" for name in names))
    return records
