"""`equipool influence`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipool.cli import console, tables

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN = 20  # elements in the picture
RAISES, LOWERS = "#0072B2", "#D55E00"


def influence(
    model: tables.Model,
    table: tables.TableFile,
    bag: Annotated[list[str] | None, typer.Option(
        help="bag to measure; can be repeated (default: all)", metavar="ID")] = None,
    out: Annotated[Path | None, typer.Option(
        help=".csv, .csv.gz or .parquet to write (default: stdout)", metavar="PATH")] = None,
    picture: Annotated[Path | None, typer.Option(
        help=".svg, .png or .pdf of the elements with the largest influence",
        metavar="PATH")] = None,
    unknown: tables.Unknown = "error",
    device: console.Device = "auto",
    threads: console.Threads = 1,
) -> None:  # fmt: skip
    """Measure the influence of each element on predictions.

    Writes one row per element, in each bag the strongest first: its bag, its row in the table (from
    0), and the prediction with it minus that without it: of the number predicted, or of a class's
    score (logit). A positive influence on a class means that the element is evidence for it. With
    two classes, this is the second class.
    """
    with console.plain_errors(console.WRONG_USE):
        tables.check_model(model, "fit")
        tables.check_table(table)
        tables.check_output(out, table)
        console.choose_device(device, threads)
    with console.plain_errors():
        from equipool.tables import write_csv, write_file

        estimator = tables.load_model(model, device)
        found = estimator.read_table(table, unknown=unknown)
        with tables.warnings_as_lines():
            effects = estimator.influence_table_bags(found, bag)
        if out is None:
            write_csv(effects, sys.stdout, digits=3)
        else:
            write_file(effects, out)
            console.note(f"Wrote {len(effects):,} rows to {out}")
        if picture is not None:
            draw(effects, picture, _title(estimator))
            console.note(f"Drew {picture}")


def _title(estimator: Any) -> str:
    """What the bars of a model's picture measure."""
    from sklearn.base import is_classifier

    labels = estimator.table_schema_.labels
    if not is_classifier(estimator):
        what = f"predicted {labels[0]}" if len(labels) == 1 else "predicted number"
    elif len(labels) == 1 and len(estimator.classes_) == 2:
        what = f"logit of {labels[0]} {estimator.classes_[1]}"
    else:
        what = "logit"
    return f"what the element adds to the {what}"


def draw(found: pa.Table, path: Path, title: str) -> None:
    """Bars of the elements with the largest influence on any output."""
    import numpy as np

    from equipool.figures import draw_bars, make_figure, save_figure

    names = found.column_names[2:]
    values = np.stack([found[name].to_numpy() for name in names], axis=1)
    strongest = np.abs(values).argmax(1)
    strength = np.take_along_axis(values, strongest[:, None], 1)[:, 0]
    rows = np.argsort(-np.abs(strength), kind="stable")[:SHOWN]
    bags, numbers = (found[column].to_pylist() for column in range(2))
    labels = [f"bag {bags[row]}, row {numbers[row]}" for row in rows]
    if len(names) > 1:
        kinds = [names[one].removeprefix("influence ") for one in strongest]
        labels = [f"{label}, {kinds[row]}" for label, row in zip(labels, rows, strict=True)]
    shown = strength[rows].tolist()
    figure = make_figure(7, 1 + 0.25 * max(len(rows), 2))
    axes = figure.subplots()
    colors = [LOWERS if value < 0 else RAISES for value in shown]
    draw_bars(axes, labels, shown, [f"{value:.3g}" for value in shown], colors)
    axes.invert_yaxis()
    axes.set_title(title, loc="left", fontsize=10, parse_math=False)
    save_figure(figure, path)
