"""Tables and figure of the page about influence, influence.md.

    python docs/figures/influence_page.py

Reads what benchmarks/influence.py measured. Prints the tables and puts them into the page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from page_tables import refresh_page

from equipool.report import Table
from equipool.report.figures import add_legend, label_axes, panels, styles

FIGURES = Path(__file__).parent
PAGE = FIGURES.parent / "influence.md"
RECORDS = FIGURES.parents[1] / "benchmarks" / "records"
PICTURE = "influence-deletion.png"
FILES = {
    "median": "cpu-influence.json",
    "jets": "cpu-influence-jets.json",
    "molhiv": "cpu-influence-molhiv.json",
}

SCORES = ("influence", "deleting each element", "gradient times input", "attention weights",
          "random")  # fmt: skip

Record = Mapping[str, Any]


def accuracy(records: Mapping[str, Record]) -> Table:
    """Newton's step against deletion, for each network and search."""
    rows = []
    for name, record in records.items():
        for row in record["accuracy"]:
            rows.append((
                name, row["search"], f"{row['elements']:,} of {row['sets']}",
                f"{row['rank_correlation']:.3f}", f"{row['rank_correlation_worst']:.2f}",
                percent(row["median_relative_error"]), percent(row["relative_error_90"]),
            ))  # fmt: skip
    headings = ("network", "search", "elements, of sets", "rank correlation", "worst set",
                "relative error, median", "90 %")  # fmt: skip
    return Table("accuracy", headings, tuple(rows))


def times(records: Mapping[str, Record]) -> Table:
    """Convergence and the time of all elements, for each network."""
    rows = []
    for name, record in records.items():
        time = record["time"]
        ratio = time["ratio"]
        shares = (f"{percent(share)} in {n} steps" for n, share in record["converged"].items())
        rows.append((
            name, f"{time['elements']:,} of {time['sets']}", str(time["channels"]),
            ", ".join(shares),
            f"{ratio['median']:.1f} ({ratio['fastest']:.1f} to {ratio['slowest']:.1f})",
        ))  # fmt: skip
    headings = ("network", "elements, of sets", "output channels", "sets that converge",
                "time, in solves")  # fmt: skip
    return Table("times", headings, tuple(rows))


def deletion(records: Mapping[str, Record]) -> Table:
    """The areas of the deletion curves: change, and size in brackets. A row per network."""
    rows = []
    for name, record in records.items():
        for network, curves in record["curves"].items():
            found = (curves["by"].get(score) for score in SCORES)
            cells = (f"{c['area']:+.2f} ({c['size_area']:.2f})" if c else "-" for c in found)
            rows.append((f"{name}, {network}", *cells))
    return Table("deletion", ("network", *SCORES), tuple(rows))


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def draw(record: Record) -> bytes:
    """The deletion curves of a record, a panel per network."""
    networks = record["curves"]
    drawn = styles([score for curves in networks.values() for score in curves["by"]])
    percents = [100 * fraction for fraction in record["fractions"]]
    with panels(1, len(networks), 10, 4.2, shared=True) as (axes, content):
        for ax, (network, curves) in zip(axes[0], networks.items(), strict=True):
            for score, curve in curves["by"].items():
                ax.plot(percents, curve["change"], **drawn[score].line(len(percents)))
            label_axes(ax, f"{network} network", "elements removed, %", "")
        axes[0, 0].set_ylabel("change of the logit, in its deviations", fontsize=10)
        add_legend(axes[0, 0], drawn)
    return content.getvalue()


def tables(records: Mapping[str, Record]) -> dict[str, Table | str]:
    """All tables of the page, by name."""
    return {
        "accuracy": accuracy(records),
        "times": times(records),
        "deletion": deletion(records),
    }


def read() -> dict[str, Record]:
    """The records of the page, by network."""
    return {
        name: json.loads((RECORDS / file).read_text(encoding="utf-8"))
        for name, file in FILES.items()
    }


def main() -> None:
    records = read()
    refresh_page(PAGE, tables(records))
    (FIGURES / PICTURE).write_bytes(draw(records["jets"]))


if __name__ == "__main__":
    main()
