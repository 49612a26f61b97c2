"""`equipool evaluate`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from equipool import training
from equipool.cli import console
from equipool.environment import versions
from equipool.experiments.common import import_task, using_data_folder
from equipool.files import write_json
from equipool.settings import Count, Range, read

Steps = Annotated[int, Range(least=0)]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Flags of `equipool evaluate`.

    Args:
        which: best or last checkpoint.
        over_steps: evaluate with each of these numbers of inner steps, such as 1,10,100.
        device: cpu, cuda, cuda:1, ... or auto.
        threads: CPU threads.
        data_dir: data directory (default: $EQUIPOOL_DATA, then the cache directory).
    """

    which: Literal["best", "last"] = "best"
    over_steps: str | None = None
    device: str = "auto"
    threads: Count = 1
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
    which, typed = options.which, options.over_steps
    steps = {read("--over-steps", text, Steps) for text in typed.split(",")} if typed else ()
    device = console.choose_device(options.device, options.threads)
    import_task(training.RunFolder(run).read_config()["task"])
    console.report_line(f"Evaluating {run}")
    with using_data_folder(options.data_dir):
        content: dict[str, Any]
        if steps:
            found = training.evaluate_over_steps(run, sorted(steps), which, device=device)
            file, content = f"over-steps-{which}.json", {"over_steps": [*map(asdict, found)]}
            headings = ["inner steps", *found[0].metrics, "residual", "99 %", "converged"]
            numbers = ([one.num_steps, *one.metrics.values(), one.residual, one.residual_99,
                        one.converged] for one in found)  # fmt: skip
            rows = [[*map(console.number, one)] for one in numbers]
        else:
            folder = run / f"results-{which}"
            metrics = training.evaluate(run, which, device=device, results=folder)
            file, content = f"evaluation-{which}.json", {"metrics": metrics}
            headings = ["metric", which]
            rows = [[name, console.number(value)] for name, value in metrics.items()]
            if folder.exists():
                console.report_line(f"Tables are in {folder}")
    console.print_table(headings, rows)
    write_json(run / file, content | {"versions": versions()})
    console.report_line(f"Stored in {run / file}")
