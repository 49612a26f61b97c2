"""The scripts in docs/figures, as modules."""

import importlib.util
import sys
from pathlib import Path

FIGURES = Path(__file__).parents[2] / "docs" / "figures"


def load_script(name):
    spec = importlib.util.spec_from_file_location(f"figures_{name}", FIGURES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def rows(table):
    """Of a table, by its headings."""
    return [dict(zip(table.headings, row, strict=True)) for row in table.rows]


def page_of_blocks(script, folder, monkeypatch, *names):
    """Let the script read `folder/records`, and write to `folder/figures` and to a page that has a
    place for each of these tables; the three."""
    records, figures, page = folder / "records", folder / "figures", folder / "page.md"
    for name, value in {"RECORDS": records, "FIGURES": figures, "PAGE": page}.items():
        monkeypatch.setattr(script, name, value)
    figures.mkdir()
    page.write_text("".join(f"<!-- generated: {name} -->\n<!-- end -->\n" for name in names))
    return records, figures, page


def drawn_pictures(figures):
    """Names of the pictures there."""
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in figures.iterdir())
    return {file.name for file in figures.iterdir()}
