"""`equipool sweep`, and the sweeps of `equipool ablate`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from equipool.cli import console
from equipool.cli.flags import TASK, Flag, as_typed
from equipool.cli.threads import read_threads, threads_of, training_step, using_threads
from equipool.cli.train import Request, base_values, build, run_name, task_commands, with_values
from equipool.experiments.presets import EXPERIMENTS

if TYPE_CHECKING:
    from equipool.training import Plan, Stop, Task, TrainingConfig

ABOUT = """Train a network for each combination of settings.

Separate several values of a flag with commas, as in --seed 0,1,2. Finished runs are skipped;
interrupted ones resume."""


@dataclass(frozen=True)
class SweepOptions(console.RunOptions):
    together: Annotated[int, console.option("runs to train at the same time", "INT")] = 1

    def check(self) -> None:
        super().check()
        if self.together < 1:
            raise ValueError(f"--together is {self.together}, expected 1 or more")


def run(request: Request, options: SweepOptions) -> None:
    """Train what is not finished, and print the results of all."""
    with console.plain_errors():
        from equipool.experiments.data import using_data_folder
        from equipool.training import Stop
        from equipool.training.devices import check_extras

    stop = Stop(options.max_seconds, console.report_line)
    out = options.out or console.default_folder(request.task, options)
    words = ["sweep", request.task, *request.words()]
    how = console.command_line(words, options.words() | {"--out": out})
    with console.plain_errors(console.WRONG_USE):
        check_extras()
        options.check()
        device, threads = console.device_from_name(options.device), read_threads(options.threads)
        planned = plan_runs(request, options, out)
    waiting = [plan for plan in planned if not _has(plan, "config.json", "record.json")]
    started = sum(_has(plan, "config.json") for plan in waiting)
    with console.plain_errors(), using_data_folder(options.data_dir):
        console.report_line(
            f"{len(planned)} runs in {out}: {len(planned) - len(waiting)} finished, "
            f"{started} to resume, {len(waiting) - started} to start"
        )
        try:
            with stop.on_signals():
                failed = _train(waiting, options.together, device, threads, stop, how)
        except KeyboardInterrupt:
            failed = []
            console.report_line(f"Interrupted. To resume: {how}")
        finished = [plan.out for plan in planned if _has(plan, "record.json")]
        _show_results(finished, out)
        if failed:
            _fail(failed, options.data_dir)
        if len(finished) < len(planned):
            done = f"{len(finished)} of {len(planned)} runs are finished"
            console.report_line(f"{done}. To resume: {how}")
            raise typer.Exit(console.STOPPED)


def axes_of(request: Request, preset: str | None) -> dict[Flag, tuple[Any, ...]]:
    """The values of each flag in a sweep, in the order of the flags: those given, else those of the
    preset."""
    own = {} if preset is None else EXPERIMENTS[request.task].presets[preset].axes
    axes = {one: own[one.name] for one in request.flags if one.section == TASK and one.name in own}
    axes |= {flag: flag.read_several(text) for flag, text in request.given.items()}
    return {flag: axes[flag] for flag in request.flags if flag in axes}


def plan_runs(request: Request, options: SweepOptions, out: Path) -> list[Plan]:
    """A run for each combination of the flags' values.

    A run with the same config that is in `out` already is used, whatever its name. A new one gets a
    name made from its values; if a run with another config has that name, this raises
    `ConfigMismatchError` with the difference.
    """
    from equipool.training import RunFolder

    values = base_values(request.task, options.preset, options.recipe)
    axes = axes_of(request, options.preset)
    files = sorted(out.glob("*/config.json"))
    existing = {file.parent: RunFolder(file.parent).read_config() for file in files}
    planned = []
    for combination in product(*axes.values()):
        chosen = with_values(values, dict(zip(axes, combination, strict=True)))
        task, config = build(request.task, chosen)
        planned.append(_plan_run(task, config, out / run_name(task, chosen, axes), existing))
    name, number = Counter(_name(plan) for plan in planned).most_common(1)[0]
    if number > 1:
        advice = "choose values that differ, or sweep them separately with an --out for each"
        raise ValueError(f"two of the runs would be called {name}: {advice}")
    return planned


def _plan_run(
    task: Task, config: TrainingConfig, folder: Path, existing: Mapping[Path, dict[str, Any]]
) -> Plan:
    from equipool.training import ConfigMismatchError, Plan
    from equipool.training.config import chosen_config, differences_of_choice

    wanted = chosen_config(task, config)  # the data is read when a run starts
    different = {path: differences_of_choice(saved, wanted) for path, saved in existing.items()}
    same = [path for path, lines in different.items() if not lines]
    if not same and folder in existing:
        advice = "drop these flags or choose another --out"
        lines = "".join(f"\n  {line}" for line in different[folder])
        raise ConfigMismatchError(f"{folder} was started with other settings: {advice}{lines}")
    return Plan(task, config, same[0] if same else folder)


def _has(plan: Plan, *files: str) -> bool:
    return all((Path(plan.out) / file).exists() for file in files)


def _name(plan: Plan) -> str:
    return Path(plan.out).name


def groups(waiting: Sequence[Plan], together: int) -> Iterator[list[Plan]]:
    """Neighbours of the same precision and, if they are resumed, the same number of threads, up to
    `together` of them."""

    def alike(plan: Plan) -> tuple[str, int | None]:
        return plan.config.precision, threads_of(plan.out)

    for _, same in groupby(waiting, key=alike):
        runs = list(same)
        for first in range(0, len(runs), together):
            yield runs[first : first + together]


def _train(
    waiting: Sequence[Plan], together: int, device: str | None, threads: int | None,
    stop: Stop, how: str,
) -> list[Plan]:  # fmt: skip
    """Train until everything is finished or it is time to stop; the runs that failed."""
    from equipool import training

    failed: list[Plan] = []
    begun = 0
    for group in groups(waiting, together):
        # after the first group all processes have agreed at its end whether to stop
        if stop.reason is not None or (not begun and stop.due()):
            console.report_line(f"Stopping before the next run: {stop.reason}. To resume: {how}")
            break
        names = ", ".join(map(_name, group))
        console.report_line(f"[{begun + 1}/{len(waiting)}] {names}")
        begun += len(group)
        task, config, out = group[0]
        try:
            with using_threads(threads, device, partial(training_step, task, config), out):
                records = training.train_together(
                    group, resume=True, device=device, stop_after=stop, how_to_resume=how
                )
        except training.StorageError:
            raise  # the next run would fail as well
        except Exception as error:  # one run's failure must not stop the others
            failed += [plan for plan in group if not _has(plan, "record.json")]
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
    for table in summaries(runs):
        console.print_table(table.headings, table.texts(), table.title)
    for line in best_groups(runs):
        console.report_line(line)
    console.report_line(f"For the curves: {console.command_line(['report', str(out)], {})}")


def _fail(failed: Sequence[Plan], data_dir: Path | None) -> NoReturn:
    first = failed[0]
    if not _has(first, "config.json"):
        console.fail(f"{len(failed)} runs could not be started, for the reasons above")
    again = {"--out": first.out, "--resume": True, "--data-dir": data_dir}
    alone = console.command_line(["train", first.task.name], again)
    console.fail(f"{len(failed)} runs failed; to see why: {alone}")


ABOUT_ABLATE = """Repeat the paper's ablations: steps, aux-weight and capacity.

Each is a sweep in its own directory, followed by a table and a picture. Flags apply to all runs,
except for the setting that an ablation varies; each of several values is run in turn. Finished runs
are skipped; interrupted ones resume."""
CAPACITIES = (0.1, 0.3, 0.6, 1.0, 1.3)


@dataclass(frozen=True)
class Study:
    """An ablation."""

    varied: str  # the field whose values are compared
    values: str | None  # as typed; None for shares of the sizes that the field has
    fixed: Mapping[str, str]  # values of other flags, unless they are typed
    # the same for runs to compare with, typed or not
    reference: Mapping[str, str] = field(default_factory=dict)


GCN = {"aggregation": "equilibrium", "convolution": "gcn"}
GIN = GCN | {"convolution": "gin"}

STUDIES: dict[str, dict[str, Study]] = {
    "molecules": {
        "steps": Study("inner_steps", "1,2,5,10", GCN, reference={"aggregation": "sum"}),
        "aux-weight": Study("readout_aux_weight", "1e-4,1e-3,1e-2,1e-1,1", GIN),
        "capacity": Study("potential", None, GCN),
    }
}


@dataclass(frozen=True)
class AblateOptions(SweepOptions):
    only: Annotated[str | None, console.option("run only these ablations", "NAME[,NAME]")] = None


def scaled(sizes: tuple[int, ...], share: float) -> tuple[int, ...]:
    """Sizes of layers with this share of the capacity: all are scaled by one factor.

    Example:
        >>> scaled((600, 300, 32), 0.1)
        (60, 30, 3)
    """
    return tuple(max(1, round(share * size)) for size in sizes)


def ablate(request: Request, options: AblateOptions) -> None:
    """Train what is not finished of each ablation, print its table, draw its picture."""
    begin = time.monotonic()
    with console.plain_errors(console.WRONG_USE):
        from equipool.extras import check_extras
        from equipool.report.page import NEEDED

        check_extras("the report", NEEDED)
        chosen = _chosen(request.task, options.only)
        plans = {name: list(_sweeps(study, request, options)) for name, study in chosen.items()}
    folder = options.out or Path("runs") / f"{request.task}-ablations"
    for name, study in chosen.items():
        console.report_line(f"{name}: {study.varied.replace('_', ' ')}")
        for given in plans[name]:
            try:
                run(replace(request, given=given), _part(options, folder / name, begin))
            except typer.Exit:
                words = ["ablate", request.task, *request.words()]
                how = console.command_line(words, options.words())
                console.report_line(f"To resume all ablations: {how}")
                raise
        _draw(folder / name, study.varied)


def _chosen(task: str, only: str | None) -> dict[str, Study]:
    known = STUDIES[task]
    names = list(known) if only is None else [name.strip() for name in only.split(",")]
    for name in names:
        if name not in known:
            raise ValueError(f"--only has {name!r}, expected some of {', '.join(known)}")
    return {name: known[name] for name in names}


def _sweeps(study: Study, request: Request, options: AblateOptions) -> Iterator[dict[Flag, str]]:
    """The flags of the study's sweeps."""
    flags = {flag.name: flag for flag in request.flags}
    given = {flags[name]: value for name, value in study.fixed.items()} | request.given
    values = study.values or _shares(flags[study.varied], request, options.preset)
    yield given | {flags[study.varied]: values}
    if study.reference:
        yield given | {flags[name]: value for name, value in study.reference.items()}


def _shares(flag: Flag, request: Request, preset: str | None) -> str:
    """Sizes of several capacities, as typed."""
    sizes = base_values(request.task, preset)[TASK][flag.name]
    if flag in request.given:
        sizes = flag.read(request.given[flag])
    return ",".join(as_typed(scaled(sizes, share)) for share in CAPACITIES)


def _part(options: AblateOptions, out: Path, begin: float) -> SweepOptions:
    left = options.max_seconds
    if left is not None and left > 0:
        left = max(round(left - (time.monotonic() - begin), 1), 0.1)
    return replace(options, out=out, max_seconds=left)


def _draw(folder: Path, setting: str) -> None:
    from equipool.environment import leads
    from equipool.report import read_runs
    from equipool.report.by_setting import draw_setting, summarize_setting
    from equipool.report.groups import group_runs
    from equipool.training.checkpoint import write_atomically

    runs = read_runs([folder])
    table = summarize_setting(runs, setting)
    console.print_table(table.headings, table.texts(), table.title)
    picture = folder / f"{setting.replace('_', '-')}.png"
    if leads():
        write_atomically(picture, draw_setting(group_runs(runs, [setting]), setting))
    console.report_line(f"The picture is {picture}")


app = task_commands(ABOUT, SweepOptions, run)
ablate_app = task_commands(ABOUT_ABLATE, AblateOptions, ablate, tasks=tuple(STUDIES))
