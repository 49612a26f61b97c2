"""Tables and figure of the page about bags, reproduction/bags.md.

    python docs/figures/bags_page.py

Reads what `benchmarks/bags.py` wrote to records/bags: folds.jsonl and assumptions.jsonl, and
unclipped.jsonl from before the estimators clipped features. Prints the tables and puts them into
the page.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from page_tables import refresh_page

from equipool.experiments.bags.data import CLASSICS, DATASETS, REPEATS
from equipool.report import Table
from equipool.report.figures import label_axes, panels

FIGURES = Path(__file__).parent
PAGE = FIGURES.parent / "reproduction" / "bags.md"
RECORDS = FIGURES.parents[1] / "records"
sys.path.append(str(FIGURES.parents[1] / "benchmarks"))

from bags_summary import common_folds, over_repeats, rank, read_lines, select  # noqa: E402
from bags_trials import METHODS  # noqa: E402

Row = Mapping[str, Any]
OTHERS = ("jets", "cdnow")  # scored by the area under the ROC curve
PASSED = 0.5


def methods_of(rows: Sequence[Row]) -> list[str]:
    """The methods of some rows, in the usual order."""
    return [method for method in METHODS if select(rows, method=method)]


def on_all_classics(rows: Sequence[Row]) -> list[str]:
    """The methods that have been run on every classic, if only on some folds."""
    return [
        method
        for method in METHODS
        if all(select(rows, dataset=name, method=method) for name in CLASSICS)
    ]


def percent(found: tuple[float, float | None] | None) -> str:
    """A mean and its deviation over the repeats."""
    if found is None:
        return "-"
    mean, deviation = found
    return f"{100 * mean:.1f}" + ("" if deviation is None else f" ± {100 * deviation:.1f}")


def results(rows: Sequence[Row], datasets: Sequence[str], measure: str = "accuracy") -> Table | str:
    """The measure of each method on each data set, with the number of folds that have been run,
    and the mean over the data sets if they are the classics."""
    shown = [name for name in datasets if select(rows, dataset=name)]
    if not shown:
        return "None of these folds has been run yet."
    headings, found = ["method", *shown], []
    if shown == list(CLASSICS):
        headings.append("mean")
    whole = on_all_classics(rows)
    for method in methods_of([row for row in rows if row["dataset"] in shown]):
        own = [row for row in select(rows, method=method) if row["dataset"] in shown]
        cells = [_cell(select(own, dataset=name), measure) for name in shown]
        if "mean" in headings:
            cells.append(f"{100 * _over_datasets(own, measure):.1f}" if method in whole else "-")
        found.append((method, *cells))
    return Table("results", tuple(headings), tuple(found))


def _cell(rows: Sequence[Row], measure: str) -> str:
    return f"{percent(over_repeats(rows, measure))} ({len(rows)})" if rows else "-"


def progress(rows: Sequence[Row]) -> Table:
    """How many of the planned folds each method has run."""
    planned = {name: REPEATS * dataset.num_folds for name, dataset in DATASETS.items()}
    found = []
    for method in METHODS:
        own = select(rows, method=method)
        cells = (f"{len(select(own, dataset=name))} of {planned[name]}" for name in planned)
        found.append((method, *cells))
    return Table("progress", ("method", *planned), tuple(found))


def ranks(rows: Sequence[Row]) -> Table | str:
    """Average ranks of the methods that have been run on all classics, over their common folds."""
    methods = on_all_classics(rows)
    classic = [row for row in rows if row["dataset"] in CLASSICS and row["method"] in methods]
    found, shared = rank(classic, methods), common_folds(classic, methods)
    if found is None:
        return "Fewer than two methods have been run on all five data sets, so there are no ranks."
    ordered = sorted(found.ranks.items(), key=lambda pair: pair[1])
    cells = []
    for method, value in ordered:
        p = found.p_values.get(method)
        cells.append((method, f"{value:.2f}", "-" if p is None else f"{p:.2f}"))
    folds = len(shared) // len(methods)
    heading = f"average rank ({folds} folds; critical difference {found.critical_difference:.2f})"
    return Table("ranks", ("method", heading, "p, Wilcoxon and Holm"), tuple(cells))


def peeked(rows: Sequence[Row]) -> Table:
    """Mean accuracy on the classics as measured, and with threshold and number of training steps
    chosen on the test fold, of the methods that have been run on all of them: the first repeat,
    for which other lengths are trained."""
    rows, found = select(rows, repeat=0), []
    for method in on_all_classics(rows):
        own = [row for row in select(rows, method=method) if row["dataset"] in CLASSICS]
        honest, chosen = (_over_datasets(own, measure) for measure in ("accuracy", "peeked"))
        gain = f"{100 * (chosen - honest):+.1f}"
        found.append((method, f"{100 * honest:.1f}", f"{100 * chosen:.1f}", gain))
    headings = ("method", "as measured", "chosen on the test fold", "difference")
    return Table("peeked", headings, tuple(found))


def clipping(rows: Sequence[Row], unclipped: Sequence[Row]) -> Table:
    """Mean accuracy and area on the classics in the first repeat, without and with clipped
    features, of the methods that have been run on all of them both ways."""
    records = [
        [row for row in select(some, repeat=0) if row["dataset"] in CLASSICS]
        for some in (unclipped, rows)
    ]
    trials = [{(r["method"], r["dataset"], r["fold"]) for r in some} for some in records]
    shared = trials[0] & trials[1]
    before, after = (
        [row for row in some if (row["method"], row["dataset"], row["fold"]) in shared]
        for some in records
    )
    found = []
    for method in on_all_classics(before):
        cells = (
            f"{100 * _over_datasets(select(some, method=method), measure):.1f}"
            for measure in ("accuracy", "auc")
            for some in (before, after)
        )
        found.append((method, *cells))
    headings = ("method", "accuracy, not clipped", "clipped", "area, not clipped", "clipped")
    return Table("clipping", headings, tuple(found))


def _over_datasets(rows: Sequence[Row], measure: str) -> float:
    names = dict.fromkeys(row["dataset"] for row in rows)
    found = (over_repeats(select(rows, dataset=name), measure) for name in names)
    return statistics.fmean(one[0] for one in found if one is not None)


def assumptions(rows: Sequence[Row]) -> Table:
    """Areas under the ROC curve on fresh bags, and on those where the shortcut misleads."""
    names = list(dict.fromkeys(str(row["name"]) for row in rows))
    found = []
    for method in methods_of(rows):
        cells = []
        for name in names:
            own = select(rows, method=method, name=name)
            usual, shifted = (
                statistics.fmean(row[key] for row in own) for key in ("usual_auc", "shifted_auc")
            )
            passes = all(row["shifted_auc"] > PASSED for row in own)
            cells.append(f"{usual:.2f} / {shifted:.2f}, {'passes' if passes else 'fails'}")
        found.append((method, *cells))
    return Table("assumptions", ("method", *names), tuple(found))


def ran_on(headers: Sequence[Row], rows: Sequence[Row]) -> str:
    """A sentence about hardware and versions."""
    machines = sorted({str(h["hardware"].get("gpu", h["hardware"]["cpu"])) for h in headers})
    torches = sorted({str(h["versions"]["torch"]) for h in headers})
    planned = sum(REPEATS * dataset.num_folds for dataset in DATASETS.values())
    return (
        f"{len(rows):,} of {planned * len(METHODS):,} trials ({len(METHODS)} methods) have been "
        f"run, on {' and '.join(machines)}, torch {' and '.join(torches)}."
    )


def draw_peeked(table: Table) -> bytes:
    """Both accuracies of each method."""
    with panels(1, 1, 7, 3.6) as (axes, content):
        ax = axes[0, 0]
        for at, (_, honest, chosen, _) in enumerate(table.rows):
            ax.plot([float(str(honest)), float(str(chosen))], [at, at], color="#999999", zorder=1)
            ax.scatter([float(str(honest))], [at], color="#0072B2", zorder=2)
            ax.scatter([float(str(chosen))], [at], color="#D55E00", marker="s", zorder=2)
        ax.set_yticks(range(len(table.rows)), [str(row[0]) for row in table.rows])
        ax.invert_yaxis()
        label_axes(ax, "as measured (dots), chosen on the test fold (squares)", "accuracy, %", "")
    return content.getvalue()


def tables(
    headers: Sequence[Row], rows: Sequence[Row], tests: Sequence[Row], unclipped: Sequence[Row]
) -> dict[str, Table | str]:
    """All tables of the page, by name."""
    return {
        "ran_on": ran_on(headers, rows),
        "progress": progress(rows),
        "results": results(rows, CLASSICS),
        "others": results(rows, OTHERS, "auc"),
        "ranks": ranks(rows),
        "peeked": peeked(rows),
        "assumptions": assumptions(tests),
        "clipping": clipping(rows, unclipped),
    }


def read() -> tuple[list[Row], list[Row], list[Row], list[Row]]:
    """The arguments of `tables`."""
    folder = RECORDS / "bags"
    headers, rows = read_lines(folder / "folds.jsonl")
    tests, unclipped = (
        read_lines(folder / name)[1] for name in ("assumptions.jsonl", "unclipped.jsonl")
    )
    return headers, rows, tests, unclipped


def main() -> None:
    found = tables(*read())
    refresh_page(PAGE, found)
    table = found["peeked"]
    assert isinstance(table, Table)
    (FIGURES / "bags-peeked.png").write_bytes(draw_peeked(table))


if __name__ == "__main__":
    main()
