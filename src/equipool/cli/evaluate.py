"""`equipool evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipool.cli import console
from equipool.cli.groups import single_command

if TYPE_CHECKING:
    from equipool.training import Examination


def evaluate(
    run: Annotated[Path, typer.Argument(help="directory of the run", metavar="RUN")],
    which: console.Which = "best",
    device: console.Device = "auto",
    data_dir: console.DataDir = None,
) -> None:
    """Evaluate a trained network.

    Prints the metrics and the task's tables, and stores them in the run's directory, with pictures
    if the task has some.
    """
    with console.plain_errors():
        console.check_which(which)

        import equipool.experiments.registry  # noqa: F401  a run's task must have been imported
        from equipool import training
        from equipool.experiments.data import using_data_folder
        from equipool.training.devices import check_extras
        from equipool.training.folder import RunFolder

        check_extras()
        place = console.device_from_name(device)
        with using_data_folder(data_dir), console.suggesting_last(which):
            task = RunFolder(run).read_config()["task"]
            _store_metrics(run, which, task, training.evaluate(run, which, device=place))
            _store_examination(run, which, training.examine(run, which, device=place))


def _store_metrics(run: Path, which: str, task: str, metrics: dict[str, float]) -> None:
    from rich.table import Table

    from equipool.environment import now, versions
    from equipool.training.checkpoint import Checkpoints
    from equipool.training.files import to_json, write_atomically

    step = Checkpoints(run).read(which, lambda broken: None).step
    table = Table("metric", f"{which}, step {step:,}")
    for name, value in metrics.items():
        table.add_row(name, f"{value:.6g}")
    console.make_console().print(table)
    file = run / f"evaluation-{which}.json"
    about = {"task": task, "which": which, "step": step, "versions": versions()}
    write_atomically(file, to_json(about | {"date": now(), "metrics": metrics}))
    console.report_line(f"Stored in {file}")


def _store_examination(run: Path, which: str, found: Examination) -> None:
    from rich.table import Table

    from equipool.training.artifacts import cell_text, examination_folder, write_examination

    if not found:
        return
    for table in found.tables:
        shown = Table(*table.headings, title=table.title)
        for row in table.rows:
            shown.add_row(*(cell_text(cell) for cell in row))
        console.make_console().print(shown)
    folder = examination_folder(run, which)
    write_examination(found, folder)
    pictures = sum(len(gallery.pictures) for gallery in found.galleries)
    console.report_line(
        f"Stored these tables and {pictures} pictures in {folder}; equipool report shows them"
    )


app = single_command(evaluate)
