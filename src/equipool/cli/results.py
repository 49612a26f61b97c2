"""`equipool evaluate` and `equipool report`: the results of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipool.cli import console

if TYPE_CHECKING:
    from equipool.training import AtSteps, Task


def evaluate(
    run: console.RunFolder,
    which: console.Which = "best",
    device: console.Device = "auto",
    threads: console.Threads = 1,
    data_dir: console.DataDir = None,
    over_steps: Annotated[
        str | None,
        console.option("evaluate with each of these numbers of inner steps", "INT,INT..."),
    ] = None,
    starts: Annotated[
        int,
        console.option("with --over-steps: number of random starts to compare", "INT"),
    ] = 0,
) -> None:
    """Evaluate a trained network.

    Prints the metrics and stores them in the run's directory, with the task's tables and pictures
    if it has any. With --over-steps, prints and stores the metrics, the residuals and the share of
    converged sets for each number of inner steps, beside those of earlier calls.
    """
    with console.plain_errors():
        numbers = None if over_steps is None else _numbers(over_steps)
        if starts and (numbers is None or starts < 2):
            raise ValueError(f"--starts is {starts}, expected 2 or more, with --over-steps")

        from equipool import training
        from equipool.experiments.data import using_data_folder
        from equipool.experiments.presets import import_task
        from equipool.training.config import task_from_config
        from equipool.training.devices import check_extras

        check_extras()
        place = console.choose_device(device, threads)
        with using_data_folder(data_dir):
            config = training.RunFolder(run).read_config()
            import_task(config["task"])
            task = task_from_config(config)
            console.report_line(f"Evaluating {run}")
            if numbers is not None:
                rows = training.evaluate_over_steps(
                    run, numbers, which, num_starts=starts, device=place
                )
                _store_over_steps(run, which, task, rows)
                return
            folder = run / f"results-{which}"
            metrics = training.evaluate(run, which, device=place, results=folder)
            _store_metrics(run, which, task.name, metrics)
            if folder.exists():
                console.report_line(f"Tables and pictures are in {folder}")


def _numbers(text: str) -> list[int]:
    """Numbers of steps, as typed: with commas between them."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise ValueError(f"--over-steps is {text!r}, expected whole numbers such as 1,10,100")
    return sorted({int(part) for part in parts})


def _about(run: Path, which: str, task: str) -> dict[str, Any]:
    from equipool.environment import now, versions
    from equipool.training import RunFolder

    step = RunFolder(run).read(which, lambda broken: None).step
    about = {"task": task, "which": which, "step": step, "versions": versions()}
    return about | {"date": now()}


def _store_metrics(run: Path, which: str, task: str, metrics: dict[str, float]) -> None:
    from equipool.files import write_json

    about = _about(run, which, task)
    rows = [(name, f"{value:.6g}") for name, value in metrics.items()]
    console.print_table(("metric", f"{which}, step {about['step']:,}"), rows)
    file = run / f"evaluation-{which}.json"
    write_json(file, about | {"metrics": metrics})
    console.report_line(f"Stored in {file}")


def _store_over_steps(run: Path, which: str, task: Task, rows: Sequence[AtSteps]) -> None:
    from equipool.training.evaluation import over_steps_file, write_over_steps

    metrics = [task.monitor, *task.reported]
    table = []
    for row in rows:
        cells = [*(row.metrics[name] for name in metrics)]
        cells += [row.residual, row.residual_99, row.converged]
        cells += [] if row.spread is None else [row.spread]
        trained = " (trained)" if row.num_steps == trained_steps(task) else ""
        table.append([f"{row.num_steps}{trained}", *(f"{cell:,.4g}" for cell in cells)])
    headings = ["inner steps", *metrics, "residual", "99 %", "converged", "spread"]
    console.print_table(headings[: len(table[0])], table)
    file = over_steps_file(run, which)
    write_over_steps(rows, file, _about(run, which, task.name))
    console.report_line(f"Stored in {file}; equipool report shows it")


def trained_steps(task: Task) -> int | None:
    """The number of inner steps that a task's layers take in evaluation."""
    from equipool.experiments.inner_loop import STEPS

    steps: int | str | None = getattr(task, "inner_steps", None)
    return int(STEPS.build(steps).budget(False).num_steps) if isinstance(steps, str) else steps


def report(
    runs: Annotated[list[Path], typer.Argument(
        help="directories of runs or sweeps, and JSON files of records", metavar="RUN")],
    out: Annotated[Path, typer.Option(help="page to write", metavar="PATH")] = Path("report.html"),
) -> None:  # fmt: skip
    """Write a page of tables and plots from runs."""
    with console.plain_errors():
        from equipool.extras import check_extras

        check_extras("the report", {"report": ("matplotlib", "jinja2", "pandas")})
        from equipool.report import read_runs, results
        from equipool.report.page import write_page

        found = read_runs(runs, lambda text: console.note(f"Warning: {text}"))
        if not found.curves.empty:
            table = results(found)
            console.print_table(list(table), table.to_numpy().tolist())
        write_page(found, out)
        console.report_line(f"The page is {out}")
