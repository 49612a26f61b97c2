"""`equipool evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from equipool.cli import console

if TYPE_CHECKING:
    from equipool.training import AtSteps, Task


@dataclass(frozen=True, kw_only=True)
class Options:
    """Flags of `equipool evaluate`.

    Args:
        which: best or last checkpoint.
        over_steps: evaluate with each of these numbers of inner steps, such as 1,10,100.
        starts: with --over-steps: number of random starts to compare.
        device: cpu, cuda, cuda:1, ... or auto.
        threads: CPU threads.
        data_dir: data directory (default: $EQUIPOOL_DATA, then the cache directory).
    """

    which: Literal["best", "last"] = "best"
    over_steps: str | None = None
    starts: int = 0
    device: str = "auto"
    threads: console.Threads = 1
    data_dir: Path | None = None


def evaluate(
    run: Annotated[Path, typer.Argument(help="directory of the run", metavar="RUN")],
    options: Options,
) -> None:
    """Evaluate a trained network.

    Prints the metrics and stores them in the run's directory, with the task's tables and pictures
    if it has any. With --over-steps, prints and stores the metrics, the residuals and the share of
    converged sets for each number of inner steps, beside those of earlier calls.
    """
    which, starts = options.which, options.starts
    with console.plain_errors():
        numbers = None if options.over_steps is None else _numbers(options.over_steps)
        if starts and (numbers is None or starts < 2):
            raise ValueError(f"--starts is {starts}, expected 2 or more, with --over-steps")

        from equipool import training
        from equipool.experiments.data import using_data_folder
        from equipool.experiments.presets import import_task
        from equipool.training.config import task_from_config
        from equipool.training.devices import check_extras

        check_extras()
        device = console.choose_device(options.device, options.threads)
        with using_data_folder(options.data_dir):
            config = training.RunFolder(run).read_config()
            import_task(config["task"])
            task = task_from_config(config)
            console.report_line(f"Evaluating {run}")
            if numbers is not None:
                rows = training.evaluate_over_steps(
                    run, numbers, which, num_starts=starts, device=device
                )
                _store_over_steps(run, which, task, rows)
                return
            folder = run / f"results-{which}"
            metrics = training.evaluate(run, which, device=device, results=folder)
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
        table.append([f"{row.num_steps}", *(f"{cell:,.4g}" for cell in cells)])
    headings = ["inner steps", *metrics, "residual", "99 %", "converged", "spread"]
    console.print_table(headings[: len(table[0])], table)
    file = over_steps_file(run, which)
    write_over_steps(rows, file, _about(run, which, task.name))
    console.report_line(f"Stored in {file}; equipool report shows it")
