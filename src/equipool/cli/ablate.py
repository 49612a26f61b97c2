"""`equipool ablate`: the paper's ablations, each a sweep."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from equipool.cli.errors import WRONG_USE, plain_errors
from equipool.cli.flags import TASK, Flag
from equipool.cli.per_task import Request, task_commands
from equipool.cli.places import DataDir, Device, MaxSeconds, Together
from equipool.cli.settings import base_values
from equipool.cli.sweep import SweepOptions
from equipool.cli.sweep import run as sweep
from equipool.cli.values import written
from equipool.cli.words import command_line, print_summary, say
from equipool.environment import leads
from equipool.experiments.registry import MoleculeTask
from equipool.extras import check_extras
from equipool.report import read_runs
from equipool.report.by_setting import draw_setting, summarize_setting
from equipool.report.groups import group_runs
from equipool.report.page import NEEDED
from equipool.training.files import write_atomically

ABOUT = (
    "The paper's ablations: steps (the number of inner steps, and what they cost), aux-weight and "
    "capacity. Each is a sweep in a folder of its own, then a table and a picture. Flags hold in "
    "all runs, except for the value that is varied; several values are gone through. Runs that are "
    "done are skipped, runs that were stopped are gone on with."
)
CAPACITIES = (0.1, 0.3, 0.6, 1.0, 1.3)


@dataclass(frozen=True)
class Study:
    """An ablation.

    Args:
        varied: the flag whose values are compared, by its name in Python.
        values: as on the command line; None where they are shares of the sizes that it has.
        fixed: values of further flags, unless they are given.
        beside: the same for runs to compare with, given or not.
    """

    varied: str
    values: str | None
    fixed: Mapping[str, str]
    beside: Mapping[str, str] = field(default_factory=dict)


GCN = {"aggregation": "equilibrium", "convolution": "gcn"}
GIN = GCN | {"convolution": "gin"}

STUDIES: dict[str, dict[str, Study]] = {
    MoleculeTask.name: {
        "steps": Study("inner_steps", "1,2,5,10", GCN, beside={"aggregation": "sum"}),
        "aux-weight": Study("readout_aux_weight", "1e-4,1e-3,1e-2,1e-1,1", GIN),
        "capacity": Study("potential", None, GCN),
    }
}


@dataclass(frozen=True)
class AblateOptions:
    """Options of `equipool ablate` that are the same for all tasks."""

    only: Annotated[
        str | None, typer.Option(help="some of the ablations, with commas between them")
    ] = None
    out: Annotated[
        Path | None, typer.Option(help="directory of their folders; by default runs/TASK-ablations")
    ] = None
    preset: Annotated[
        str | None, typer.Option(help="settings to start from; flags change them")
    ] = None
    device: Device = "auto"
    together: Together = 1
    max_seconds: MaxSeconds = None
    data_dir: DataDir = None


def scaled(sizes: tuple[int, ...], share: float) -> tuple[int, ...]:
    """Sizes of layers of so much of the capacity: all of them by the same factor.

    Example:
        >>> scaled((600, 300, 32), 0.1)
        (60, 30, 3)
    """
    return tuple(max(1, round(share * size)) for size in sizes)


def run(request: Request, options: AblateOptions) -> None:
    """Train what is not done of each ablation, print its table, draw its picture."""
    begin = time.monotonic()
    with plain_errors(WRONG_USE):
        check_extras("the report", NEEDED)
        chosen = _chosen(request, options.only)
        plans = {name: list(_sweeps(study, request, options)) for name, study in chosen.items()}
    folder = options.out or Path("runs") / f"{request.kind.name}-ablations"
    for name, study in chosen.items():
        say(f"{name}: {study.varied.replace('_', ' ')}")
        for given in plans[name]:
            part = Request(request.kind, request.flags, given)
            try:
                sweep(part, _sweep_options(options, folder / name, begin))
            except typer.Exit:
                say(f"To go on with all ablations: {_how(request, options)}")
                raise
        _conclude(folder / name, study.varied)


def _chosen(request: Request, only: str | None) -> dict[str, Study]:
    known = STUDIES[request.kind.name]
    names = list(known) if only is None else [name.strip() for name in only.split(",")]
    for name in names:
        if name not in known:
            raise ValueError(f"--only has {name!r}, expected some of {', '.join(known)}")
    return {name: known[name] for name in names}


def _sweeps(study: Study, request: Request, options: AblateOptions) -> Iterator[dict[Flag, str]]:
    """The flags of the study's sweeps."""
    flags = {flag.parameter: flag for flag in request.flags}
    given = {flags[name]: value for name, value in study.fixed.items()} | request.given
    values = study.values or _shares(flags[study.varied], request, options.preset)
    yield given | {flags[study.varied]: values}
    if study.beside:
        yield given | {flags[name]: value for name, value in study.beside.items()}


def _shares(flag: Flag, request: Request, preset: str | None) -> str:
    """Sizes in several capacities, as on the command line."""
    sizes = base_values(request.kind, preset)[TASK].get(flag.name, getattr(request.kind, flag.name))
    if flag in request.given:
        sizes = flag.read(request.given[flag])
    return ",".join(written(scaled(sizes, share)) for share in CAPACITIES)


def _sweep_options(options: AblateOptions, out: Path, begin: float) -> SweepOptions:
    left = options.max_seconds
    if left is not None and left > 0:
        left = max(round(left - (time.monotonic() - begin), 1), 0.1)
    return SweepOptions(
        out=out,
        preset=options.preset,
        device=options.device,
        together=options.together,
        max_seconds=left,
        data_dir=options.data_dir,
    )


def _how(request: Request, options: AblateOptions) -> str:
    given: dict[str, object] = {
        "--only": options.only,
        "--out": options.out,
        "--preset": options.preset,
        "--device": None if options.device == "auto" else options.device,
        "--together": None if options.together == 1 else options.together,
        "--max-seconds": options.max_seconds,
        "--data-dir": options.data_dir,
    }
    return command_line(["ablate", request.kind.name, *request.words()], given)


def _conclude(folder: Path, setting: str) -> None:
    runs = read_runs([folder])
    print_summary(summarize_setting(runs, setting))
    picture = folder / f"{setting.replace('_', '-')}.png"
    if leads():
        write_atomically(picture, draw_setting(group_runs(runs, [setting]), setting))
    say(f"The picture is {picture}")


app = task_commands(ABOUT, AblateOptions, run)
app.registered_commands = [one for one in app.registered_commands if one.name in STUDIES]
