"""`equipool evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

import equipool.experiments.registry  # noqa: F401  a run's task must be known to be made again
from equipool.cli.errors import plain_errors
from equipool.cli.places import DataDir, Device, device_from_name
from equipool.cli.words import make_console, say
from equipool.environment import now, versions
from equipool.experiments.data_folder import using_data_folder
from equipool.training import evaluate as evaluate_run
from equipool.training import examine
from equipool.training.artifacts import cell_text, examination_folder, write_examination
from equipool.training.checkpoint import Checkpoints
from equipool.training.devices import check_extras
from equipool.training.files import to_json, write_atomically
from equipool.training.folder import RunFolder

WHICH = ("best", "last")


def evaluate(
    run: Annotated[Path, typer.Argument(help="the run's directory")],
    which: Annotated[str, typer.Option(help="best or last checkpoint")] = "best",
    device: Device = "auto",
    data_dir: DataDir = None,
) -> None:
    """Evaluate a run's network; print the metrics, and the tables that its task has beside them,
    and store them in the run's directory, with pictures where there are some."""
    with plain_errors(), using_data_folder(data_dir):
        if which not in WHICH:
            raise ValueError(f"--which is {which!r}, expected one of {', '.join(WHICH)}")
        check_extras()
        config = RunFolder(run).read_config()
        metrics = evaluate_run(run, which, device=device_from_name(device))
        step = Checkpoints(run).read(which, lambda broken: None).step
        table = Table("metric", f"{which}, step {step:,}")
        for name, value in metrics.items():
            table.add_row(name, f"{value:.6g}")
        make_console().print(table)
        file = run / f"evaluation-{which}.json"
        about = {"task": config["task"], "which": which, "step": step, "versions": versions()}
        write_atomically(file, to_json(about | {"date": now(), "metrics": metrics}))
        say(f"Stored in {file}")
        _examine(run, which, device)


def _examine(run: Path, which: str, device: str) -> None:
    found = examine(run, which, device=device_from_name(device))
    if not found:
        return
    for table in found.tables:
        shown = Table(*table.headings, title=table.title)
        for row in table.rows:
            shown.add_row(*(cell_text(cell) for cell in row))
        make_console().print(shown)
    folder = examination_folder(run, which)
    write_examination(found, folder)
    pictures = sum(len(gallery.pictures) for gallery in found.galleries)
    say(f"These tables and {pictures} pictures are in {folder}; equipool report shows them")
