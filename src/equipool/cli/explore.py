"""`equipool explore`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipool.cli import console, tables

NAMED = 5  # bags in the message about an unknown one


def explore(
    model: tables.Model,
    table: tables.TableFile,
    bag: Annotated[str, typer.Option(help="bag to show", metavar="ID")],
    out: Annotated[Path, typer.Option(help="page to write", metavar="PATH")] = Path("explore.html"),
    unknown: tables.Unknown = "error",
) -> None:
    """Write a page that shows a bag and the model's prediction.

    The model runs in the page, which needs neither Python nor an internet connection. It shows the
    elements in two dimensions, coloured by a feature or by what they contribute. Click an element
    to switch it off, and see the prediction change.
    """
    with console.plain_errors(console.WRONG_USE):
        tables.check_model(model, "fit")
        tables.check_table(table)
        _check_out(out)
    with console.plain_errors(), tables.warnings_as_lines():
        from equipool.files import write_text

        estimator = tables.load_model(model, "cpu")
        from equipool.explore.model import model_page

        found = estimator.read_table(table, unknown=unknown)
        if bag not in found.ids:
            some = ", ".join(map(repr, found.ids[:NAMED]))
            raise ValueError(f"--bag is {bag!r}, which {table} does not have; it has {some}, ...")
        number = found.ids.index(bag)
        rows = found.rows[found.bags.ptr[number] : found.bags.ptr[number + 1]]
        title = f"{estimator.table_schema_.bag} {bag}"
        page = model_page(
            estimator, found.bags[number], title=title, names=[f"row {row}" for row in rows]
        )
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, page)
    console.note(f"Wrote {out}: open it in a browser")


def _check_out(out: Path) -> None:
    if out.exists() and not out.is_file():
        raise ValueError(f"--out is {out}, expected a file")
    if out.suffix != ".html":
        raise ValueError(f"--out is {out}, expected a name that ends in .html")
