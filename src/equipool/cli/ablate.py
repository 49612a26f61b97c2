"""`equipool ablate`: the paper's ablations, each a sweep."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import typer

from equipool.cli import console
from equipool.cli.flags import TASK, Flag, as_typed
from equipool.cli.groups import Request, task_commands
from equipool.cli.settings import base_values
from equipool.cli.sweep import SweepOptions
from equipool.cli.sweep import run as sweep

ABOUT = """Repeat the paper's ablations: steps, aux-weight and capacity.

Each is a sweep in its own directory, followed by a table and a picture. Flags apply to all runs,
except for the setting that an ablation varies; each of several values is run in turn. Finished runs
are skipped; interrupted ones resume."""
CAPACITIES = (0.1, 0.3, 0.6, 1.0, 1.3)


@dataclass(frozen=True)
class Study:
    """An ablation.

    Args:
        varied: the field whose values are compared.
        values: as typed; None for shares of the sizes that the field has.
        fixed: values of other flags, unless they are typed.
        reference: the same for runs to compare with, typed or not.
    """

    varied: str
    values: str | None
    fixed: Mapping[str, str]
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
    """Options of `equipool ablate`."""

    only: Annotated[str | None, console.option("run only these ablations", "NAME[,NAME]")] = None


def scaled(sizes: tuple[int, ...], share: float) -> tuple[int, ...]:
    """Sizes of layers with this share of the capacity: all are scaled by one factor.

    Example:
        >>> scaled((600, 300, 32), 0.1)
        (60, 30, 3)
    """
    return tuple(max(1, round(share * size)) for size in sizes)


def run(request: Request, options: AblateOptions) -> None:
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
                sweep(replace(request, given=given), _part(options, folder / name, begin))
            except typer.Exit:
                words = ["ablate", request.task, *request.words()]
                how = console.command_line(words, options.words())
                console.report_line(f"To resume all ablations: {how}")
                raise
        _conclude(folder / name, study.varied)


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


def _conclude(folder: Path, setting: str) -> None:
    from equipool.report import read_runs
    from equipool.report.by_setting import draw_setting, summarize_setting
    from equipool.report.groups import group_runs
    from equipool.training.checkpoint import write_atomically

    runs = read_runs([folder])
    console.print_summary(summarize_setting(runs, setting))
    picture = folder / f"{setting.replace('_', '-')}.png"
    if console.is_leader():
        write_atomically(picture, draw_setting(group_runs(runs, [setting]), setting))
    console.report_line(f"The picture is {picture}")


app = task_commands(ABOUT, AblateOptions, run, tasks=tuple(STUDIES))
