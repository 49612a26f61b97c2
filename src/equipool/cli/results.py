"""`equipool evaluate` and `equipool report`: what came of runs."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipool.cli import console
from equipool.cli.threads import read_threads, training_step, using_threads

if TYPE_CHECKING:
    from equipool.training import Examination


def evaluate(
    run: console.RunFolder, which: console.Which = "best", device: console.Device = "auto",
    threads: console.Threads = "auto", data_dir: console.DataDir = None,
) -> None:  # fmt: skip
    """Evaluate a trained network.

    Prints the metrics and the task's tables, and stores them in the run's directory, with pictures
    if the task has some.
    """
    with console.plain_errors():
        import equipool.experiments.registry  # noqa: F401  a run's task must have been imported
        from equipool import training
        from equipool.experiments.data import using_data_folder
        from equipool.training.config import task_from_config, training_from_config
        from equipool.training.devices import check_extras

        check_extras()
        place, number = console.device_from_name(device), read_threads(threads)
        with using_data_folder(data_dir):
            config = training.RunFolder(run).read_config()
            task, settings = task_from_config(config), training_from_config(config)
            with using_threads(number, place, lambda: training_step(task, settings)):
                with closing(training.progress_for_terminal()) as shown:
                    metrics = training.evaluate(run, which, device=place, progress=shown)
                _store_metrics(run, which, task.name, metrics)
                _store_examination(run, which, training.examine(run, which, device=place))


def _store_metrics(run: Path, which: str, task: str, metrics: dict[str, float]) -> None:
    from equipool.environment import now, versions
    from equipool.training import Checkpoints
    from equipool.training.checkpoint import to_json, write_atomically

    step = Checkpoints(run).read(which, lambda broken: None).step
    rows = [(name, f"{value:.6g}") for name, value in metrics.items()]
    console.print_table(("metric", f"{which}, step {step:,}"), rows)
    file = run / f"evaluation-{which}.json"
    about = {"task": task, "which": which, "step": step, "versions": versions()}
    write_atomically(file, to_json(about | {"date": now(), "metrics": metrics}))
    console.report_line(f"Stored in {file}")


def _store_examination(run: Path, which: str, found: Examination) -> None:
    from equipool.training import examination_folder, write_examination

    if not found:
        return
    for table in found.tables:
        console.print_table(table.headings, table.texts(), table.title)
    folder = examination_folder(run, which)
    write_examination(found, folder)
    pictures = sum(len(gallery.pictures) for gallery in found.galleries)
    console.report_line(
        f"Stored these tables and {pictures} pictures in {folder}; equipool report shows them"
    )


def report(
    runs: Annotated[list[Path], typer.Argument(
        help="directories of runs or sweeps, and JSON files of records", metavar="RUN")],
    out: Annotated[Path, typer.Option(help="page to write", metavar="PATH")] = Path("report.html"),
) -> None:  # fmt: skip
    """Write a page of tables and plots from runs."""
    with console.plain_errors():
        from equipool.report import read_runs, summaries, write_page
        from equipool.report.runs import unread_folders

        found = read_runs(runs, lambda text: typer.echo(f"Warning: {text}", err=True))
        skipped = [place for path in runs for place in unread_folders(path)]
        if skipped:
            console.report_line(f"Skipped deeper directories: {', '.join(map(str, skipped))}")
        for table in summaries(found):
            console.print_table(table.headings, table.texts(), table.title)
        write_page(found, out)
        console.report_line(f"The page is {out}")


evaluate_app = console.single_command(evaluate)
report_app = console.single_command(report)
