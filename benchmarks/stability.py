"""Which options keep the training of the layer from spiking.

    python benchmarks/stability.py --quick                  # minutes on one core
    python benchmarks/stability.py --out stability.json     # hours

Every option trains the median experiment's network with several seeds. A training step takes about
20 ms on a CPU. An interrupted run resumes from --out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from equipool.bench.command import (
    Commit,
    Device,
    Out,
    check_names,
    check_out,
    choose_device,
    full_command,
    only,
)
from equipool.bench.record import FORMAT, git_commit, read_content
from equipool.bench.terminal import make_console, progress_bar
from rich.console import Console
from rich.table import Table

from equipool.environment import hardware, now, versions
from equipool.experiments.median import MedianTask
from equipool.settings import write_part
from equipool.training import TrainingConfig, count_spikes, fit

COLUMNS = (
    "option", "spikes", "seeds", "not finite", "largest loss", "error", "its quartiles", "step size"
)  # fmt: skip

CHANNELS = 4
WIDTH = 16
INNER_STEPS = 5
HEAD_WIDTH = 32


@dataclass(frozen=True)
class Sizes:
    """Sizes of the task."""

    set_size: int = 16
    batch_size: int = 16
    evaluation_sets: int = 4000


SIZES = Sizes()


@dataclass(frozen=True)
class Plan:
    """How much to run."""

    seeds: int = 20
    steps: int = 1000
    sizes: Sizes = SIZES


QUICK = Plan(seeds=3, steps=300)

app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Setting:
    """The conditions of a training."""

    name: str
    description: str
    learning_rate: float
    potential_outputs: int


@dataclass(frozen=True)
class Option:
    """One way to train; everything else is as in the plain recipe."""

    name: str
    solver: str = "nesterov"
    start: str = "zero"
    bias_std: float = 0.0  # deviation of the potential's first biases
    clip_norm: float | None = None
    warm_up: float = 0.0  # share of the steps
    solver_rate_factor: float = 1.0

    def task(self, setting: Setting, sizes: Sizes, seed: int) -> MedianTask:
        """The median experiment with the option's layer."""
        return MedianTask(
            embedding=CHANNELS, batch_size=sizes.batch_size, seed=seed, set_size=sizes.set_size,
            width=WIDTH, head_width=HEAD_WIDTH, potential_output=setting.potential_outputs,
            inner_steps=INNER_STEPS, evaluation_sets=sizes.evaluation_sets, solver=self.solver,
            start=self.start, bias_std=self.bias_std,
        )  # fmt: skip

    def config(self, setting: Setting, steps: int) -> TrainingConfig:
        """Adam at a constant rate, with no protection but the option's own."""
        return TrainingConfig(
            steps, setting.learning_rate, warmup_steps=round(self.warm_up * steps),
            solver_rate_factor=self.solver_rate_factor, clip_norm=self.clip_norm,
            guard_factor=None, aux_weight=0.0,
        )  # fmt: skip


class Trial(NamedTuple):
    """An option in a setting."""

    option: Option
    setting: Setting

    def names(self) -> tuple[str, str]:
        return self.option.name, self.setting.name

    def is_among(self, options: Collection[str] | None, settings: Collection[str] | None) -> bool:
        """Whether both are selected; None selects all."""
        chosen = not options or self.option.name in options
        return chosen and (not settings or self.setting.name in settings)


HARD = Setting("hard", "Adam at 1e-2, potential [16, 16, 8]", 1e-2, 8)
USUAL = Setting("usual", "Adam at 1e-3, potential [16, 16, 8]", 1e-3, 8)
ONE_OUTPUT = Setting("one output", "Adam at 1e-2, potential [16, 16, 1]", 1e-2, 1)


def _nesterov(**arguments: float) -> str:
    return write_part("nesterov", arguments)


STEPS = _nesterov(momentum=0.5, max_step=0.5)
CURVATURE = _nesterov(momentum=0.5, max_step=0.5, curvature_safe=True)
AT_ONE = "learned:value=1.0"

OPTIONS = (
    Option("plain recipe"),
    Option("random biases", bias_std=0.3),
    Option("step size from 0.02", _nesterov(learning_rate=0.02)),
    Option("momentum from 0.5", _nesterov(momentum=0.5)),
    Option("steps no longer than 0.5", _nesterov(max_step=0.5)),
    Option("inner gradient no longer than 1", _nesterov(max_gradient=1.0)),
    Option("step size below 1 / curvature", _nesterov(curvature_safe=True)),
    Option("step size and momentum 10 times slower", solver_rate_factor=0.1),
    Option("gradient clipped at 1", clip_norm=1.0),
    Option("warm-up", warm_up=0.2),
    Option("start at 1, learned", start=AT_ONE),
    Option("steps + curvature", _nesterov(max_step=0.5, curvature_safe=True)),
    Option("steps + momentum", STEPS),
    Option("steps + momentum + curvature", CURVATURE),
    Option("steps + momentum + clipping", STEPS, clip_norm=1.0),
    Option("steps + momentum + start", STEPS, start=AT_ONE),
    Option("steps + momentum + curvature + biases", CURVATURE, bias_std=0.3),
)

# Tried in every setting, and by --quick in the hard one: the paper's recipe and the restrained one,
# each with zero biases and with the layer's default ones.
SHORT_LIST = (
    "plain recipe", "random biases", "steps + momentum + curvature",
    "steps + momentum + curvature + biases",
)  # fmt: skip

TRIALS = (
    *(Trial(option, HARD) for option in OPTIONS),
    *(Trial(option, USUAL) for option in OPTIONS if option.name in SHORT_LIST),
    *(Trial(option, ONE_OUTPUT) for option in OPTIONS if option.name in SHORT_LIST),
)


@dataclass(frozen=True)
class Outcome:
    """Results of an option, one number for each seed; None for values that are not finite."""

    setting: str
    option: str
    spikes: list[int]
    not_finite: list[int]  # steps whose loss is not finite
    largest: list[float | None]  # loss in the second half of the steps
    errors: list[float | None]
    learning_rates: list[float | None]  # of the inner steps, as learned
    momenta: list[float | None]
    first: list[float | None] = field(default_factory=list)  # loss of the first step


@dataclass(frozen=True)
class StabilityRecord:
    """A run."""

    command: str
    date: str
    commit: str
    versions: dict[str, str]
    hardware: dict[str, str | int]
    seeds: int
    steps: int
    sizes: Sizes
    rows: list[Outcome] = field(default_factory=list)
    format: int = FORMAT

    def write(self, file: Path) -> None:
        """Write it as JSON, with one list per line."""
        file.parent.mkdir(parents=True, exist_ok=True)
        content = asdict(self) | {"rows": []}
        rows = ",\n".join(_row_text(row) for row in self.rows)
        text = json.dumps(content, indent=1).replace('"rows": []', f'"rows": [\n{rows}\n ]')
        file.write_text(text + "\n", encoding="utf-8")


def read_stability(file: Path) -> StabilityRecord:
    """Read what `StabilityRecord.write` wrote."""
    content = read_content(file)
    content["sizes"] = Sizes(**content["sizes"])
    content["rows"] = [Outcome(**row) for row in content["rows"]]
    return StabilityRecord(**content)


def run_trials(
    trials: Sequence[Trial],
    plan: Plan,
    device: torch.device,
    command: str,
    commit: str,
    console: Console,
    out: Path | None = None,
) -> StabilityRecord:
    """Train every trial with a progress bar. The record is written to `out` after each trial, and
    trials that an earlier, interrupted run wrote there are not repeated."""
    record = StabilityRecord(
        command, now(), commit, versions(), hardware(device), plan.seeds, plan.steps, plan.sizes
    )
    if out is not None and out.exists():
        record.rows.extend(_same_run(read_stability(out), record).rows)
        found = {(row.option, row.setting) for row in record.rows}
        trials = [trial for trial in trials if trial.names() not in found]
    with progress_bar(console, len(trials) * plan.seeds) as advance:
        for option, setting in trials:
            advance(f"{setting.name}: {option.name}")
            record.rows.append(measure(option, setting, plan, device, lambda: advance(steps=1)))
            if out is not None:
                record.write(out)
    return record


def measure(
    option: Option, setting: Setting, plan: Plan, device: torch.device,
    on_seed: Callable[[], None] = lambda: None,
) -> Outcome:  # fmt: skip
    """Train all seeds of an option."""
    losses, errors, rates, momenta = [], [], [], []
    for seed in range(plan.seeds):
        task = option.task(setting, plan.sizes, seed)
        fitted = fit(task, option.config(setting, plan.steps), device)
        solver: Any = fitted.network.get_submodule("aggregation.solver")
        losses.append(fitted.history["loss"].cpu())
        errors.append(fitted.record.metrics[MedianTask.monitor])
        rates.append(solver.learning_rate.item())
        momenta.append(solver.momentum.item())
        on_seed()
    by_step = torch.stack(losses, dim=1)
    return Outcome(
        setting.name,
        option.name,
        count_spikes(by_step).tolist(),
        (~torch.isfinite(by_step)).sum(0).tolist(),
        _finite(by_step[len(by_step) // 2 :].amax(0).tolist()),
        _finite(errors),
        _finite(rates),
        _finite(momenta),
        _finite(by_step[0].tolist()),
    )


def _same_run(old: StabilityRecord, new: StabilityRecord) -> StabilityRecord:
    """The old record; raises if it is of another run."""
    for name in ("commit", "versions", "hardware", "seeds", "steps", "sizes"):
        before, current = getattr(old, name), getattr(new, name)
        if before != current:
            raise ValueError(
                f"the existing record has {name} {before}, expected {current}: choose another --out"
            )
    return old


def table(record: StabilityRecord, setting: str) -> Table:
    """The rows of a setting, for the console."""
    made = Table(*COLUMNS)
    for row in record.rows:
        if row.setting == setting:
            made.add_row(*cells(row))
    return made


def cells(row: Outcome) -> tuple[str, ...]:
    """A row as text, in the order of `COLUMNS`."""
    first, middle, third = quartiles(row.errors)
    return (
        row.option,
        f"{sum(row.spikes)}",
        f"{sum(count > 0 for count in row.spikes)}",
        f"{sum(row.not_finite)}",
        f"{quartiles(row.largest)[1]:.1e}",
        f"{middle:.1e}",
        f"{first:.1e} to {third:.1e}",
        f"{quartiles(row.learning_rates)[1]:.3f}",
    )


def quartiles(values: Sequence[float | None]) -> tuple[float, float, float]:
    """First quartile, median and third quartile; values that are not finite count as infinite."""
    ordered = sorted(math.inf if value is None else value for value in values)
    first, middle, third = (ordered[round(q * (len(ordered) - 1))] for q in (0.25, 0.5, 0.75))
    return first, middle, third


def _row_text(row: Outcome) -> str:
    parts = (f"   {json.dumps(name)}: {json.dumps(value)}" for name, value in asdict(row).items())
    return "  {\n" + ",\n".join(parts) + "\n  }"


def _finite(values: Iterable[float | None]) -> list[float | None]:
    """Four digits; None for values that are not finite."""
    numbers = (math.nan if value is None else value for value in values)
    return [float(f"{value:.4g}") if math.isfinite(value) else None for value in numbers]


@app.command()
def main(
    device: Device = "auto",
    seeds: Annotated[int, typer.Option(min=1, help="networks per option", metavar="INT")] = 20,
    steps: Annotated[int, typer.Option(min=1, help="training steps", metavar="INT")] = 1000,
    option: Annotated[list[str] | None, only("this one")] = None,
    setting: Annotated[list[str] | None, only("this one")] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help=f"{len(SHORT_LIST)} options, {QUICK.seeds} seeds, {QUICK.steps} steps each",
        ),
    ] = False,
    out: Out = None,
    commit: Commit = None,
) -> None:
    """Count spikes in the training of the layer, with and without measures against them."""
    check_names("option", option, dict.fromkeys(trial.option.name for trial in TRIALS))
    check_names("setting", setting, dict.fromkeys(trial.setting.name for trial in TRIALS))
    check_out(out)
    plan = Plan(seeds, steps, SIZES)
    flags: dict[str, Any] = {"seeds": seeds, "steps": steps}
    chosen = [trial for trial in TRIALS if trial.is_among(option, setting)]
    if quick:
        plan, flags = QUICK, {"quick": True}
        chosen = [t for t in chosen if t.option.name in SHORT_LIST and t.setting is HARD]
    where, console = choose_device(device), make_console()
    start = f"python benchmarks/stability.py --device {where.type}"
    command = full_command(start, flags | {"option": option, "setting": setting})
    record = run_trials(chosen, plan, where, command, commit or git_commit(), console, out)
    for found in dict.fromkeys(trial.setting for trial in chosen):
        console.print(f"{found.name}: {found.description}")
        console.print(table(record, found.name))


if __name__ == "__main__":
    app()
