"""`equipool evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
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

    Prints the metrics and stores them in the run's directory, with the task's tables if it has any.
    With --over-steps, prints and stores the metrics, the residuals and the share of converged sets
    for each number of inner steps.
    """
    which, starts = options.which, options.starts
    with console.plain_errors():
        numbers = None if options.over_steps is None else _numbers(options.over_steps)
        if starts and (numbers is None or starts < 2):
            raise ValueError(f"--starts is {starts}, expected 2 or more, with --over-steps")

        from equipool import training
        from equipool.experiments.common import import_task, using_data_folder
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
                _print_over_steps(task, rows)
                content = {"over_steps": [asdict(row) for row in rows]}
                _store(run / f"over-steps-{which}.json", which, task, content)
                return
            folder = run / f"results-{which}"
            metrics = training.evaluate(run, which, device=device, results=folder)
            console.print_table(
                ("metric", which), [(name, f"{value:.6g}") for name, value in metrics.items()]
            )
            _store(run / f"evaluation-{which}.json", which, task, {"metrics": metrics})
            if folder.exists():
                console.report_line(f"Tables are in {folder}")


def _numbers(text: str) -> list[int]:
    """Numbers of steps, as typed: with commas between them."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise ValueError(f"--over-steps is {text!r}, expected whole numbers such as 1,10,100")
    return sorted({int(part) for part in parts})


def _print_over_steps(task: Task, rows: Sequence[AtSteps]) -> None:
    metrics = [task.monitor, *task.reported]
    table = []
    for row in rows:
        cells = [*(row.metrics[name] for name in metrics)]
        cells += [row.residual, row.residual_99, row.converged]
        cells += [] if row.spread is None else [row.spread]
        table.append([f"{row.num_steps}", *(f"{cell:,.4g}" for cell in cells)])
    headings = ["inner steps", *metrics, "residual", "99 %", "converged", "spread"]
    console.print_table(headings[: len(table[0])], table)


def _store(file: Path, which: str, task: Task, content: dict[str, Any]) -> None:
    from equipool.environment import now, versions
    from equipool.files import write_json
    from equipool.training import RunFolder

    step = RunFolder(file.parent).read(which, lambda broken: None).step
    about = {"task": task.name, "which": which, "step": step, "versions": versions()}
    write_json(file, about | {"date": now()} | content)
    console.report_line(f"Stored in {file}")
