"""Pooling methods and baselines on bags of vectors, by cross-validation.

    python benchmarks/bags.py                                # all that is missing
    python benchmarks/bags.py --jobs 16                      # the same in 16 processes
    python benchmarks/bags.py --dataset musk1 --repeat 0     # a part
    python benchmarks/bags.py --assumptions                  # the multiple-instance unit tests
    python benchmarks/bags.py --show                         # tables of what has been run

Every method has its default settings on every data set. Results are appended to a file of JSON
lines; trials that it has are skipped, so an interrupted run resumes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from bags_summary import HEADER, append_line, over_repeats, rank, read_lines, select
from bags_trials import ASSUMPTIONS, METHODS, Assumption, Trial, all_trials
from rich.table import Table

from equipool.bench.command import Device, check_names, choose_device, only
from equipool.bench.record import git_commit
from equipool.bench.terminal import make_console, progress_bar
from equipool.environment import hardware, now, versions
from equipool.estimators import SetClassifier
from equipool.experiments.bags.data import DATASETS

RECORDS = Path(__file__).parents[1] / "records" / "bags"
FOLDS, TESTS = RECORDS / "folds.jsonl", RECORDS / "assumptions.jsonl"
TEST_BAGS, TEST_SEEDS = 200, 3

app = typer.Typer(add_completion=False)

Job = Callable[[], dict[str, Any]]


def _command(words: list[str]) -> str:
    """What was typed, without the places of data and record."""
    for place in ("--data-dir", "--out"):
        at = words.index(place) if place in words else len(words)
        words = words[:at] + words[at + 2 :]
    return " ".join(words)


def header(device: torch.device) -> dict[str, Any]:
    """What a run of this script is, for the lines after it."""
    facts = {"date": now(), "commit": git_commit(), "command": _command(sys.argv[1:])}
    where = {"versions": versions(), "hardware": hardware(device)}
    return {HEADER: facts | where | {"networks": SetClassifier().get_params()}}


def missing_trials(
    trials: Sequence[Trial | Assumption], rows: Sequence[Any]
) -> list[Trial | Assumption]:
    """The trials that no row is of."""
    return [one for one in trials if not select(rows, **vars(one))]


def results(jobs: Sequence[Job], processes: int) -> Iterator[dict[str, Any]]:
    """What the jobs return, as they finish."""
    if processes == 1:
        yield from (job() for job in jobs)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        waiting: set[Future[dict[str, Any]]] = {pool.submit(job) for job in jobs}
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)


def run(jobs: Sequence[Job], processes: int, out: Path, device: torch.device) -> None:
    """Run the jobs, each result appended to the record as it comes."""
    if not jobs:
        return
    append_line(out, header(device))
    with progress_bar(make_console(), len(jobs)) as advance:
        for row in results(jobs, processes):
            append_line(out, row)
            advance(steps=1)


def accuracy_table(rows: Sequence[Any]) -> Table:
    """Accuracy of each method on each data set."""
    datasets = [name for name in DATASETS if select(rows, dataset=name)]
    table = Table("method", *datasets)
    for method in METHODS:
        cells = [_cell(select(rows, dataset=name, method=method)) for name in datasets]
        table.add_row(method, *cells)
    return table


def _cell(rows: Sequence[Any]) -> str:
    found = over_repeats(rows, "accuracy")
    if found is None:
        return "-"
    mean, deviation = found
    spread = "" if deviation is None else f" ± {100 * deviation:.1f}"
    return f"{100 * mean:.1f}{spread} ({len(rows)})"


def show(rows: Sequence[Any]) -> None:
    """Print accuracies (number of folds in brackets) and ranks."""
    console = make_console()
    console.print(accuracy_table(rows))
    found = rank(rows, METHODS)
    if found is not None:
        table = Table("method", "average rank", "p against equilibrium")
        for method, value in sorted(found.ranks.items(), key=lambda pair: pair[1]):
            p = found.p_values.get(method)
            table.add_row(method, f"{value:.2f}", "-" if p is None else f"{p:.3f}")
        console.print(table)
        console.print(
            f"{found.num_datasets} data sets; critical difference {found.critical_difference:.2f}"
        )


@app.command()
def main(
    dataset: Annotated[list[str] | None, only("this one")] = None,
    method: Annotated[list[str] | None, only("this one")] = None,
    repeat: Annotated[list[int] | None, only("this one, from 0")] = None,
    fold: Annotated[list[int] | None, only("this one, from 0")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="processes", metavar="INT")] = 1,
    device: Device = "auto",
    data_dir: Annotated[str | None, typer.Option(help="data directory", metavar="PATH")] = None,
    out: Annotated[Path | None, typer.Option(help="file of JSON lines", metavar="PATH")] = None,
    assumptions: Annotated[
        bool, typer.Option("--assumptions", help="run the multiple-instance unit tests instead")
    ] = False,
    show_only: Annotated[bool, typer.Option("--show", help="run nothing")] = False,
) -> None:
    """Cross-validate pooling methods and baselines on bags of vectors."""
    check_names("dataset", dataset, DATASETS)
    check_names("method", method, METHODS)
    where = choose_device(device)
    file = out or (TESTS if assumptions else FOLDS)
    _, rows = read_lines(file)
    if assumptions:
        planned = [
            Assumption(name, one, seed)
            for seed in range(TEST_SEEDS)
            for name in ASSUMPTIONS
            for one in method or METHODS
        ]
        work = [partial(one.run, TEST_BAGS, where.type) for one in missing_trials(planned, rows)]
    elif not show_only:
        planned = [
            trial
            for trial in all_trials(data_dir, tuple(dataset or DATASETS))
            if (not method or trial.method in method)
            and (not repeat or trial.repeat in repeat)
            and (not fold or trial.fold in fold)
        ]
        work = [partial(one.run, data_dir, where.type) for one in missing_trials(planned, rows)]
    if not show_only:
        run(work, jobs, file, where)
    if not assumptions:
        show(read_lines(file)[1])


if __name__ == "__main__":
    app()
