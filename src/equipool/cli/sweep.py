"""`equipool sweep`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from equipool.cli.errors import STOPPED, WRONG_USE, fail, plain_errors
from equipool.cli.per_task import Request, task_commands
from equipool.cli.places import (
    DataDir,
    Device,
    MaxSeconds,
    Together,
    check_seconds,
    default_folder,
    device_from_name,
)
from equipool.cli.planning import Planned, plan_runs
from equipool.cli.settings import axes_of, base_values
from equipool.cli.words import command_line, print_summary, say
from equipool.experiments.data_folder import using_data_folder
from equipool.report import best_groups, read_runs, summaries
from equipool.training import Stop, StorageError, train_together
from equipool.training.devices import check_extras
from equipool.training.folder import RunFolder

ABOUT = (
    "Train several networks: flags take several values with commas between them. "
    "Runs that are done are skipped, runs that were stopped are gone on with."
)


@dataclass(frozen=True)
class SweepOptions:
    """Options of `equipool sweep` that are the same for all tasks."""

    out: Annotated[
        Path | None, typer.Option(help="directory of all the runs; by default runs/TASK")
    ] = None
    preset: Annotated[
        str | None, typer.Option(help="settings and values to start from; flags change them")
    ] = None
    device: Device = "auto"
    together: Together = 1
    max_seconds: MaxSeconds = None
    data_dir: DataDir = None


def run(request: Request, options: SweepOptions) -> None:
    """Train what is not done, print what came of all."""
    stop = Stop(options.max_seconds, say)
    out = options.out or default_folder(request.kind.name, options.preset)
    how = _how(request, options, out)
    with plain_errors(WRONG_USE):
        check_extras()
        device = device_from_name(options.device)
        check_seconds(options.max_seconds)
        axes = axes_of(request.kind, request.flags, request.given, options.preset)
        planned = plan_runs(request.kind, base_values(request.kind, options.preset), axes, out)
    with plain_errors(), using_data_folder(options.data_dir):
        _announce(planned, out)
        waiting = [one for one in planned if not one.done]
        try:
            with stop.on_signals():
                failed = _train(waiting, options.together, device, stop, how)
        except KeyboardInterrupt:
            failed = []
            say(f"Interrupted. To go on: {how}")
        done = [one.plan.out for one in planned if one.is_done_now()]
        _conclude(done, len(planned), failed, options, out, how)


def _how(request: Request, options: SweepOptions, out: Path) -> str:
    words = ["sweep", request.kind.name, *request.words()]
    given = {"--preset": options.preset, "--out": out, "--max-seconds": options.max_seconds}
    device = None if options.device == "auto" else options.device
    together = None if options.together == 1 else options.together
    given |= {"--device": device, "--together": together, "--data-dir": options.data_dir}
    return command_line(words, given)


def _announce(planned: Sequence[Planned], out: Path) -> None:
    done = sum(one.done for one in planned)
    begun = sum(one.begun and not one.done for one in planned)
    say(
        f"{len(planned)} runs in {out}: {done} done, {begun} to go on with, "
        f"{len(planned) - done - begun} to start"
    )


def groups(waiting: Sequence[Planned], together: int) -> Iterator[list[Planned]]:
    """Neighbours of the same precision, `together` at a time."""
    for _, same in groupby(waiting, key=lambda one: one.plan.config.precision):
        runs = list(same)
        for first in range(0, len(runs), together):
            yield runs[first : first + together]


def _train(
    waiting: Sequence[Planned], together: int, device: str | None, stop: Stop, how: str
) -> list[Planned]:
    """Train until all is done or it is to stop; the runs that failed."""
    failed: list[Planned] = []
    begun = 0
    for group in groups(waiting, together):
        # after the first group, whether to stop is what all processes have agreed on in its end
        if stop.reason is not None or (not begun and stop.due()):
            say(f"No further run is begun: {stop.reason}. To go on: {how}")
            break
        names = ", ".join(one.name for one in group)
        say(f"[{begun + 1}/{len(waiting)}] {names}")
        begun += len(group)
        try:
            records = train_together(
                [one.plan for one in group],
                resume=True,
                device=device,
                stop_after=stop,
                how_to_resume=how,
            )
        except StorageError:
            raise  # of the next run as well
        except Exception as error:  # one run's failure must not cost the others
            failed += [one for one in group if not one.is_done_now()]
            say(f"{names} failed, {type(error).__name__}: {error}")
            continue
        if not all(record.complete for record in records):
            break
    return failed


def _conclude(
    done: Sequence[str | Path],
    number: int,
    failed: Sequence[Planned],
    options: SweepOptions,
    out: Path,
    how: str,
) -> None:
    if done:
        runs = read_runs(done)
        for summary in summaries(runs):
            print_summary(summary)
        for line in best_groups(runs):
            say(line)
        say(f"For the curves: {command_line(['report', str(out)], {})}")
    if failed:
        first = failed[0].plan
        if not RunFolder(first.out).config.exists():
            fail(f"{len(failed)} runs failed, for the reasons above: they could not be started")
        again = {"--out": first.out, "--resume": True, "--data-dir": options.data_dir}
        alone = command_line(["train", first.task.name], again)
        fail(f"{len(failed)} runs failed; to see why: {alone}")
    if len(done) < number:
        say(f"{len(done)} of {number} runs are done. To go on: {how}")
        raise typer.Exit(STOPPED)


app = task_commands(ABOUT, SweepOptions, run)
