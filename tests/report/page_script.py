"""The scripts in docs/figures, as modules."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from equipool.report.recorded import fill_tables

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "figures"


def load_script(name):
    spec = importlib.util.spec_from_file_location(f"figures_{name}", FIGURES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def page_text(name):
    """Of a page of the documentation; nothing where there is none."""
    file = ROOT / "docs" / "reproduction" / f"{name}.md"
    return file.read_text(encoding="utf-8") if file.exists() else ""


def pictures_of(name):
    """Names of the pictures that a page shows, and of those that were drawn for it."""
    shown = set(re.findall(rf"\(\.\./figures/({name}-[^)]+)\)", page_text(name)))
    return shown, {file.name for file in FIGURES.glob(f"{name}-*")}


def needs_page(name):
    """Skip where the page, or its folder of records, is not there."""
    missing = not page_text(name) or not (ROOT / "records" / name).is_dir()
    return pytest.mark.skipif(missing, reason=f"there is no page of {name}, or no records")


def check_page(name, tables):
    """That the page has these tables, and shows the pictures that there are."""
    assert fill_tables(page_text(name), tables) == page_text(name)
    shown, drawn = pictures_of(name)
    assert shown == drawn


def rows(table):
    """Of a table, by its headings."""
    return [dict(zip(table.headings, row, strict=True)) for row in table.rows]


def page_of_blocks(script, folder, monkeypatch, *names):
    """Let the script read `folder/records`, and write to `folder/figures` and to a page that has a
    place for each of these tables; the folder of records."""
    records, figures, page = folder / "records", folder / "figures", folder / "page.md"
    for name, value in {"RECORDS": records, "FIGURES": figures, "PAGE": page}.items():
        monkeypatch.setattr(script, name, value)
    figures.mkdir()
    page.write_text("".join(f"<!-- generated: {name} -->\n<!-- end -->\n" for name in names))
    return records


def check_main(script, lines, pictures):
    """That the script writes these lines to its page, and draws pictures of these names."""
    script.main()
    text = script.PAGE.read_text()
    for line in lines:
        assert line in text
    drawn = list(script.FIGURES.iterdir())
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in drawn)
    assert {file.name for file in drawn} == pictures
