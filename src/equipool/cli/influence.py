"""`equipool influence`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from equipool.cli import bags, console


@dataclass(frozen=True, kw_only=True)
class Options:
    """Flags of `equipool influence`.

    Args:
        out: .csv, .csv.gz or .parquet to write (default: stdout).
        unknown: categories that training did not have: stop, or treat as no category.
        device: cpu, cuda, cuda:1, ... or auto.
        threads: CPU threads.
    """

    out: Path | None = None
    unknown: Literal["error", "ignore"] = "error"
    device: str = "auto"
    threads: console.Threads = 1


def influence(
    model: console.Model,
    table: console.Table,
    bag: Annotated[list[str] | None, typer.Option(
        help="bag to measure; can be repeated (default: all)", metavar="ID")] = None,
    *, options: Options,
) -> None:  # fmt: skip
    """Measure the influence of each element on predictions.

    Writes one row per element, in each bag the strongest first: its bag, its row in the table (from
    0), and the prediction with it minus that without it: of the number predicted, or of a class's
    score (logit). A positive influence on a class means that the element is evidence for it. With
    two classes, this is the second class.
    """
    with console.plain_errors(console.WRONG_USE):
        bags.check_output(options.out, table)
        bags.check_ending(options.out)
        estimator = bags.load_model(model, options.device, options.threads)
    with console.plain_errors():
        with bags.warnings_as_lines():
            effects = estimator.influence_table(table, bags=bag, unknown=options.unknown)
        bags.write_table(effects, options.out, digits=3)
