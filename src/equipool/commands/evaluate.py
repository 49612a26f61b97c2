"""`equipool evaluate`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

import equipool.tasks  # noqa: F401  a run's task must be known to be made again
from equipool.commands.errors import plain_errors
from equipool.commands.places import device_from_name
from equipool.commands.words import make_console, say
from equipool.environment import versions
from equipool.training import evaluate as evaluate_run
from equipool.training.checkpoint import Checkpoints
from equipool.training.extras import check_extras
from equipool.training.files import to_json, write_atomically
from equipool.training.folder import RunFolder

WHICH = ("best", "last")


def evaluate(
    run: Annotated[Path, typer.Argument(help="the run's directory")],
    which: Annotated[str, typer.Option(help="best or last checkpoint")] = "best",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ... or auto")] = "auto",
) -> None:
    """Evaluate a run's network; print the metrics and store them in the run's directory."""
    with plain_errors():
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
        date = datetime.now(UTC).isoformat(timespec="seconds")
        write_atomically(file, to_json(about | {"date": date, "metrics": metrics}))
        say(f"Stored in {file}")
