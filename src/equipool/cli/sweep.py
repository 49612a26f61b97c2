"""`equipool sweep`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from equipool.cli import console
from equipool.cli.flags import Flag
from equipool.cli.groups import Request, task_commands
from equipool.cli.settings import Values, axes_of, base_values, build, run_name, with_values
from equipool.cli.threads import read_threads, threads_of, training_step, using_threads

if TYPE_CHECKING:
    from equipool.training import Plan, Stop

ABOUT = """Train a network for each combination of settings.

Flags take several values with commas between them, as in --seed 0,1,2. Finished runs are skipped;
interrupted ones resume."""


@dataclass(frozen=True)
class SweepOptions(console.RunOptions):
    """Options of `equipool sweep`."""

    together: Annotated[int, console.option("runs to train at the same time", "INT")] = 1

    def check(self) -> None:
        super().check()
        if self.together < 1:
            raise ValueError(f"--together is {self.together}, expected 1 or more")


@dataclass(frozen=True)
class Planned:
    """A run of a sweep: its plan, and whether it has started or finished."""

    plan: Plan
    started: bool
    finished: bool

    @property
    def name(self) -> str:
        return Path(self.plan.out).name

    def is_finished_now(self) -> bool:
        return (Path(self.plan.out) / "record.json").exists()


def run(request: Request, options: SweepOptions) -> None:
    """Train what is not finished, and print the results of all."""
    with console.plain_errors():
        from equipool.experiments.data import using_data_folder
        from equipool.training import Stop
        from equipool.training.devices import check_extras

    stop = Stop(options.max_seconds, console.report_line)
    out = options.out or console.default_folder(request.task, options.preset)
    words = ["sweep", request.task, *request.words()]
    how = console.command_line(words, options.words() | {"--out": out})
    with console.plain_errors(console.WRONG_USE):
        check_extras()
        options.check()
        device, threads = console.device_from_name(options.device), read_threads(options.threads)
        axes = axes_of(request.task, request.flags, request.given, options.preset)
        planned = plan_runs(request.task, base_values(request.task, options.preset), axes, out)
    with console.plain_errors(), using_data_folder(options.data_dir):
        _announce(planned, out)
        waiting = [one for one in planned if not one.finished]
        try:
            with stop.on_signals():
                failed = _train(waiting, options.together, device, threads, stop, how)
        except KeyboardInterrupt:
            failed = []
            console.report_line(f"Interrupted. To resume: {how}")
        finished = [one.plan.out for one in planned if one.is_finished_now()]
        _show_results(finished, out)
        if failed:
            _fail(failed, options.data_dir)
        if len(finished) < len(planned):
            done = f"{len(finished)} of {len(planned)} runs are finished"
            console.report_line(f"{done}. To resume: {how}")
            raise typer.Exit(console.STOPPED)


def plan_runs(
    task: str, values: Values, axes: Mapping[Flag, tuple[Any, ...]], out: Path
) -> list[Planned]:
    """A run for each combination of the axes' values.

    A run with the same config that is in `out` already is used, whatever its name. A new one gets a
    name made from its values; if a run with another config has that name, this raises
    `ConfigMismatchError` with the difference.
    """
    from equipool.training import RunFolder

    files = sorted(out.glob("*/config.json"))
    existing = {file.parent: RunFolder(file.parent).read_config() for file in files}
    planned = []
    for combination in product(*axes.values()):
        chosen = with_values(values, dict(zip(axes, combination, strict=True)))
        folder = out / run_name(task, chosen, axes)
        planned.append(_plan_run(task, chosen, folder, existing))
    names = Counter(one.name for one in planned)
    doubled = [name for name, number in names.items() if number > 1]
    if doubled:
        raise ValueError(
            f"two of the runs would be called {doubled[0]}: choose values that differ, or sweep "
            "them separately with an --out for each"
        )
    return planned


def _plan_run(
    task: str, values: Values, folder: Path, existing: Mapping[Path, dict[str, Any]]
) -> Planned:
    from equipool.training import ConfigMismatchError, Plan
    from equipool.training.config import chosen_config, differences_of_choice

    made, config = build(task, values)
    wanted = chosen_config(made, config)  # the data is read when a run starts
    same = [path for path, saved in existing.items() if not differences_of_choice(saved, wanted)]
    if not same and folder in existing:
        different = differences_of_choice(existing[folder], wanted)
        raise ConfigMismatchError(
            f"{folder} was started with other settings: drop these flags or choose another --out\n"
            + "\n".join(f"  {line}" for line in different)
        )
    place = same[0] if same else folder
    finished = bool(same) and (place / "record.json").exists()
    return Planned(Plan(made, config, place), started=bool(same), finished=finished)


def _announce(planned: Sequence[Planned], out: Path) -> None:
    finished = sum(one.finished for one in planned)
    started = sum(one.started and not one.finished for one in planned)
    console.report_line(
        f"{len(planned)} runs in {out}: {finished} finished, {started} to resume, "
        f"{len(planned) - finished - started} to start"
    )


def groups(waiting: Sequence[Planned], together: int) -> Iterator[list[Planned]]:
    """Neighbours of the same precision and, if they are resumed, the same number of threads, up to
    `together` of them."""

    def alike(one: Planned) -> tuple[str, int | None]:
        return one.plan.config.precision, threads_of(one.plan.out)

    for _, same in groupby(waiting, key=alike):
        runs = list(same)
        for first in range(0, len(runs), together):
            yield runs[first : first + together]


def _train(
    waiting: Sequence[Planned],
    together: int,
    device: str | None,
    threads: int | None,
    stop: Stop,
    how: str,
) -> list[Planned]:
    """Train until everything is finished or it is time to stop; the runs that failed."""
    from equipool import training

    failed: list[Planned] = []
    begun = 0
    for group in groups(waiting, together):
        # after the first group all processes have agreed at its end whether to stop
        if stop.reason is not None or (not begun and stop.due()):
            console.report_line(f"Stopping before the next run: {stop.reason}. To resume: {how}")
            break
        names = ", ".join(one.name for one in group)
        console.report_line(f"[{begun + 1}/{len(waiting)}] {names}")
        begun += len(group)
        plans = [one.plan for one in group]
        task, config, out = plans[0]
        try:
            with using_threads(threads, device, partial(training_step, task, config), out):
                records = training.train_together(
                    plans, resume=True, device=device, stop_after=stop, how_to_resume=how
                )
        except training.StorageError:
            raise  # the next run would fail as well
        except Exception as error:  # one run's failure must not stop the others
            failed += [one for one in group if not one.is_finished_now()]
            console.report_line(f"{names} failed, {type(error).__name__}: {error}")
            continue
        if not all(record.complete for record in records):
            break
    return failed


def _show_results(finished: Sequence[str | Path], out: Path) -> None:
    from equipool.report import best_groups, read_runs, summaries

    if not finished:
        return
    runs = read_runs(finished)
    for summary in summaries(runs):
        console.print_summary(summary)
    for line in best_groups(runs):
        console.report_line(line)
    console.report_line(f"For the curves: {console.command_line(['report', str(out)], {})}")


def _fail(failed: Sequence[Planned], data_dir: Path | None) -> NoReturn:
    first = failed[0].plan
    if not (Path(first.out) / "config.json").exists():
        console.fail(f"{len(failed)} runs could not be started, for the reasons above")
    again = {"--out": first.out, "--resume": True, "--data-dir": data_dir}
    alone = console.command_line(["train", first.task.name], again)
    console.fail(f"{len(failed)} runs failed; to see why: {alone}")


app = task_commands(ABOUT, SweepOptions, run)
