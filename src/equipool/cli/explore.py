"""`equipool explore`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from equipool.cli import bags, console

NAMED = 5  # bags in the message about an unknown one


@dataclass(frozen=True, kw_only=True)
class Options:
    """Flags of `equipool explore`.

    Args:
        bag: bag to show.
        out: page to write.
        unknown: categories that training did not have: stop, or treat as no category.
    """

    bag: str
    out: Path = Path("explore.html")
    unknown: Literal["error", "ignore"] = "error"


def explore(model: console.Model, table: console.Table, options: Options) -> None:
    """Write a page that shows a bag and the model's prediction.

    The model runs in the page, which needs neither Python nor an internet connection. It shows the
    elements in two dimensions, coloured by a feature or by what they contribute. Click an element
    to switch it off, and see the prediction change.
    """
    bag, out = options.bag, options.out
    with console.plain_errors(console.WRONG_USE):
        if out.suffix != ".html":
            raise ValueError(f"--out is {out}, expected a name that ends in .html")
        bags.check_output(out, table)
        estimator = bags.load_model(model, "cpu")
    with console.plain_errors(), bags.warnings_as_lines():
        from equipool.estimators.tables import read_table
        from equipool.explore.model import model_page
        from equipool.files import write_text

        found = read_table(table, estimator.table_schema_, unknown=options.unknown)
        if bag not in found.ids:
            some = ", ".join(map(repr, found.ids[:NAMED]))
            raise ValueError(f"--bag is {bag!r}, which {table} does not have; it has {some}, ...")
        number = found.ids.index(bag)
        rows = found.rows[found.bags.ptr[number] : found.bags.ptr[number + 1]]
        title, names = f"{estimator.table_schema_.bag} {bag}", [f"row {row}" for row in rows]
        page = model_page(estimator, found.bags[number], title=title, names=names)
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, page)
    console.note(f"Wrote {out}: open it in a browser")
