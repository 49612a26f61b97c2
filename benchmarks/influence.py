"""Influence against deletion: accuracy of `equipool.influence`, its time, and deletion curves.

    python benchmarks/influence.py --out benchmarks/records/cpu-influence.json
    python benchmarks/influence.py --run runs/jets --rival runs/jets-attention

Without `--run` it first trains two small networks for the median, in minutes on one core. A run is
one of the median, of bags or of molecules; for the last two, the sets are test sets. A rival is a
run with attention pooling, for the deletion curves. Exits with 1 if a goal is missed.
"""

from __future__ import annotations

import copy
import itertools
import json
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from equipool.bench.command import Commit, Out, check_out, full_command
from equipool.bench.record import FORMAT, git_commit
from influence_subjects import CPU, Subject, subject_of_run, trained_median
from torch import Tensor

import equipool
from equipool import EquilibriumAggregation, Fixed, Newton
from equipool.baselines import AttentionPooling
from equipool.diagnostics.gradients import seconds_of
from equipool.environment import hardware, now, versions

RANK_CORRELATION = 0.95  # goals: at least,
RELATIVE_ERROR = 0.05  # at most,
TIMES_A_SOLVE = 5.0  # at most
FRACTIONS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
WITHOUT_SIGN = ("attention weights", "random")
TIGHT = 1e-7  # tolerance of the searches that delete; they stop at a thousandth of it
NEWTON_STEPS = 20
LONGER = 5

app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Plan:
    """How much to run: sets whose elements are really deleted, sets to time and to draw curves
    of, repeats of the timing, and steps of training."""

    deleted_sets: int = 8
    timed_sets: int = 256
    repeats: int = 5
    steps: int = 700
    set_size: int = 100


def spread_of(values: Sequence[float]) -> dict[str, float]:
    """Of repeated measurements."""
    median = statistics.median(values)
    return {"median": median, "fastest": min(values), "slowest": max(values)}


def precise(subject: Subject) -> Subject:
    """The same in float64, with Newton steps after the layer's own search, until no component of
    the gradient exceeds `TIGHT`."""
    exact = subject.double()
    layer = equilibrium_of(exact)
    layer.solver = Newton(after=layer.solver, num_steps=NEWTON_STEPS)
    layer.steps = Fixed(equilibrium_of(subject).num_steps + NEWTON_STEPS, TIGHT)
    return exact


def equilibrium_of(subject: Subject) -> EquilibriumAggregation:
    if not isinstance(subject.layer, EquilibriumAggregation):
        raise typer.BadParameter("expected a run with --aggregation equilibrium")
    return subject.layer


def accuracy(subject: Subject) -> list[dict[str, Any]]:
    """Newton's step against deletion, for the minimum in float64 and for the layer as it is.

    An element is deleted by searching for the minimum without it, from the minimum with it."""
    exact = precise(subject)
    true = _influence(exact, "exact")
    rows = [
        ("the minimum, float64", _influence(exact)),
        (f"{equilibrium_of(subject).num_steps} steps, float32", _influence(subject)),
    ]
    kept = true.converged.unsqueeze(-1) & subject.mask & true.solved
    return [
        {"search": name, "not_definite": int((subject.mask & ~found.solved).sum()),
         **_agreement(found, true, kept)}
        for name, found in rows
    ]  # fmt: skip


def _influence(subject: Subject, method: Any = "newton") -> equipool.Influence:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # counted in the record
        return equipool.influence(
            equilibrium_of(subject), subject.x, mask=subject.mask, function=subject.output,
            method=method,
        )  # fmt: skip


def _agreement(
    found: equipool.Influence, true: equipool.Influence, kept: Tensor
) -> dict[str, float | int]:
    assert found.effect is not None
    assert true.effect is not None
    kept = kept & found.solved
    estimate, effect = found.effect.double(), true.effect
    sets = [i for i in range(len(kept)) if int(kept[i].sum()) > 2]
    ranks = [spearman(estimate[i][kept[i]], effect[i][kept[i]]) for i in sets]
    errors = ((estimate - effect).abs() / effect.abs())[kept]
    moved = (found.change.double() - true.change).norm(dim=-1) / true.change.norm(dim=-1)
    return {
        "sets": len(kept),
        "converged_sets": int(found.converged.sum()),
        "compared_sets": len(sets),
        "elements": int(kept.sum()),
        "rank_correlation": _mean(ranks),
        "rank_correlation_worst": min(ranks, default=float("nan")),
        "median_relative_error": _quantile(errors, 0.5),
        "relative_error_90": _quantile(errors, 0.9),
        "median_relative_error_of_y": _quantile(moved[kept], 0.5),
        "median_effect": _quantile(effect[kept].abs(), 0.5),
    }


def spearman(a: Tensor, b: Tensor) -> float:
    """Rank correlation of two vectors without ties.

    Example:
        >>> spearman(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 8.0, 9.0]))
        1.0
    """
    ranks = [values.argsort().argsort().double() for values in (a, b)]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def _quantile(values: Tensor, q: float) -> float:
    return float(values.quantile(q)) if values.numel() else float("nan")


@torch.no_grad()
def converged_share(subject: Subject) -> dict[str, float]:
    """The share of sets that converge in the layer's own number of steps and in five times as
    many."""
    layer = copy.deepcopy(equilibrium_of(subject))
    found = {}
    for num_steps in (layer.num_steps, LONGER * layer.num_steps):
        layer.steps = Fixed(num_steps, layer.steps.tolerance)
        converged = layer.solve(subject.x, mask=subject.mask).converged
        assert converged is not None
        found[str(num_steps)] = float(converged.double().mean())
    return found


def times(subject: Subject, repeats: int) -> dict[str, Any]:
    """Seconds of one solve without gradients and of the influence of all elements, which take
    turns; the influence includes a solve."""
    layer = equilibrium_of(subject)

    def solve() -> None:
        with torch.no_grad():
            layer(subject.x, mask=subject.mask)

    steps = {"solve": solve, "influence": lambda: _influence(subject)}
    found: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(repeats):
        for name, step in steps.items():
            found[name] += seconds_of(step, subject.x.device, 1)
    ratios = [a / b for a, b in zip(found["influence"], found["solve"], strict=True)]
    return {
        "sets": len(subject.x),
        "elements": int(subject.mask.sum()),
        "num_steps": layer.num_steps,
        "channels": layer.out_channels,
        "repeats": repeats,
        "seconds": {name: spread_of(values) for name, values in found.items()},
        "ratio": spread_of(ratios),
    }


def deletion_curve(
    predict: Callable[[Tensor], Tensor], mask: Tensor, scores: Tensor,
    fractions: Sequence[float] = FRACTIONS,
) -> list[float]:  # fmt: skip
    """How the output changes as the elements with the largest scores are removed, the largest
    first: its mean over the sets after each fraction, minus that of the whole sets.

    If a score says what its element adds to the output, the curve falls; the lower, the better.

    Args:
        predict: the output of the elements that are left, `mask [B, L] -> [B]`.
        mask: the real elements, `[B, L]`.
        scores: `[B, L]`. Elements without a score (NaN) are removed last.
        fractions: of the elements of each set.
    """
    scores = torch.where(mask & ~scores.isnan(), scores.double(), -torch.inf)
    rank = scores.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    counts = mask.sum(-1, keepdim=True)
    with torch.no_grad():
        outputs = [
            float(predict(mask & (rank >= (fraction * counts).round())).double().mean())
            for fraction in fractions
        ]
    return [output - outputs[0] for output in outputs]


def area(curve: Sequence[float], fractions: Sequence[float] = FRACTIONS) -> float:
    """The mean height of a curve, by trapezes."""
    points = list(zip(fractions, curve, strict=True))
    pieces = [(b - a) * (s + t) / 2 for (a, s), (b, t) in itertools.pairwise(points)]
    return sum(pieces) / (fractions[-1] - fractions[0])


def scores_of(subject: Subject, seed: int = 0) -> dict[str, Tensor]:
    """What each method says an element adds to the output, `[B, L]`. Weights have no sign."""
    generator = torch.Generator().manual_seed(seed)
    scores = {"random": torch.rand(subject.mask.shape, generator=generator)}
    if isinstance(subject.layer, AttentionPooling):
        scores["attention weights"] = attention_weights(subject.layer, subject.x, subject.mask)
        scores["deleting each element"] = single_deletions(subject)
        layer = subject.layer
    else:
        effect = _influence(subject).effect
        assert effect is not None
        scores["influence"] = effect
        layer = copy.deepcopy(equilibrium_of(subject))
        layer.differentiation = equipool.Implicit()  # the gradient of the minimum
    x = subject.x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(subject.output(layer(x, mask=subject.mask)).sum(), x)
    return scores | {"gradient times input": (gradient * subject.x).sum(-1)}


@torch.no_grad()
def attention_weights(pooling: AttentionPooling, x: Tensor, mask: Tensor) -> Tensor:
    """The weights of the elements, averaged over the heads: `[B, L, C] -> [B, L]`."""
    keys = pooling.keys(x).unflatten(-1, pooling.query.shape)
    logits = (keys * pooling.query).sum(-1) / pooling.query.shape[1] ** 0.5
    logits = logits.masked_fill(~mask.unsqueeze(-1), -torch.inf)
    return torch.softmax(logits, dim=1).mean(-1)


@torch.no_grad()
def single_deletions(subject: Subject) -> Tensor:
    """The output minus that without the element, `[B, L]`, by a prediction per element."""
    whole, left = subject.predict(subject.mask), []
    for element in range(subject.mask.shape[1]):
        mask = subject.mask.clone()
        mask[:, element] = False
        left.append(subject.predict(mask))
    return whole.unsqueeze(-1) - torch.stack(left, -1)


def curves_of(subject: Subject) -> dict[str, Any]:
    """Deletion curves of each score, in standard deviations of the network's outputs.

    `change` is in the direction of the prediction if the output is a logit, so that removing what
    speaks for the prediction makes it fall. `size` is the mean absolute change when elements are
    removed in the order of the absolute score, which needs no sign; more is better.
    """
    with torch.no_grad():
        whole = subject.predict(subject.mask)
    deviation = whole.std()
    direction = torch.where((whole < 0) & subject.is_logit, -1.0, 1.0)

    def change(mask: Tensor) -> Tensor:
        return direction * subject.predict(mask) / deviation

    def size(mask: Tensor) -> Tensor:
        return (subject.predict(mask) - whole).abs() / deviation

    found = {}
    for name, scores in scores_of(subject).items():
        signed = scores * (1 if name in WITHOUT_SIGN else direction.unsqueeze(-1))
        falling = deletion_curve(change, subject.mask, signed)
        growing = deletion_curve(size, subject.mask, scores.abs())
        found[name] = {"change": falling, "area": area(falling), "size": growing,
                       "size_area": area(growing)}  # fmt: skip
    return {"deviation": float(deviation), "by": found}


def missed_goals(content: Mapping[str, Any]) -> list[str]:
    """The goals that a record misses, in words."""
    missed = []
    for row in content["accuracy"]:
        where = row["search"]
        if not row["rank_correlation"] >= RANK_CORRELATION:
            missed.append(f"{where}: rank correlation {row['rank_correlation']:.3f}")
        if not row["median_relative_error"] <= RELATIVE_ERROR:
            missed.append(f"{where}: median relative error {row['median_relative_error']:.1%}")
    if not content["time"]["ratio"]["median"] <= TIMES_A_SOLVE:
        missed.append(f"time: {content['time']['ratio']['median']:.2f} solves")
    return missed


def show(content: Mapping[str, Any]) -> None:
    for row in content["accuracy"]:
        print(
            f"{row['search']}: {row['converged_sets']} of {row['sets']} sets converged, rank "
            f"correlation {row['rank_correlation']:.4f} (worst set "
            f"{row['rank_correlation_worst']:.4f}), relative error: median "
            f"{row['median_relative_error']:.2%}, 90 % {row['relative_error_90']:.2%}"
        )
    for steps, share in content["converged"].items():
        print(f"{steps} steps: {share:.1%} of the sets converged")
    time = content["time"]
    print(
        f"{time['elements']:,} elements of {time['sets']} sets: influence "
        f"{1000 * time['seconds']['influence']['median']:.3g} ms, one solve "
        f"{1000 * time['seconds']['solve']['median']:.3g} ms, ratio "
        f"{time['ratio']['median']:.2f} ({time['ratio']['fastest']:.2f}-"
        f"{time['ratio']['slowest']:.2f})"
    )
    for network, curves in content["curves"].items():
        for name, curve in curves["by"].items():
            print(
                f"{network}, deletion by {name}: mean change {curve['area']:+.3f}, size "
                f"{curve['size_area']:.3f} deviations of the output"
            )


@app.command()
def main(
    run: Annotated[Path | None, typer.Option(help="measure this run")] = None,
    rival: Annotated[Path | None, typer.Option(help="a run with attention")] = None,
    steps: Annotated[int, typer.Option(help="training steps, without --run")] = Plan.steps,
    sets: Annotated[int, typer.Option(help="sets to time")] = Plan.timed_sets,
    deleted: Annotated[int, typer.Option(help="sets to delete from")] = Plan.deleted_sets,
    size: Annotated[int, typer.Option(help="elements per set")] = Plan.set_size,
    repeats: Annotated[int, typer.Option(help="repeats of the timing")] = Plan.repeats,
    seed: Annotated[int, typer.Option(help="random seed")] = 0,
    out: Out = None,
    commit: Commit = None,
) -> None:
    """Measure influence against deletion."""
    check_out(out)
    torch.set_num_threads(1)
    plan = Plan(deleted, sets, repeats, steps, size)
    flags = {"run": run, "rival": rival, "steps": steps, "sets": sets, "deleted": deleted,
             "size": size, "repeats": repeats, "seed": seed}  # fmt: skip
    content: dict[str, Any] = {
        "command": full_command("python benchmarks/influence.py", flags), "date": now(),
        "commit": commit or git_commit(), "versions": versions(), "hardware": hardware(CPU),
        "format": FORMAT, "plan": asdict(plan),
    }  # fmt: skip
    subjects: dict[str, Subject] = {}
    for name, folder in (("equilibrium", run), ("attention", rival)):
        if folder is not None:
            subjects[name], content[name] = subject_of_run(folder, sets)
        elif run is None:
            subjects[name], content[name] = trained_median(name, sets, size, steps, seed)
    subject = subjects["equilibrium"]
    content["accuracy"] = accuracy(subject.first(deleted))
    content["converged"] = converged_share(subject)
    content["time"] = times(subject, repeats)
    content["fractions"] = FRACTIONS
    content["curves"] = {name: curves_of(subject) for name, subject in subjects.items()}
    content["missed"] = missed_goals(content)
    show(content)
    if out is not None:
        out.write_text(json.dumps(content, indent=1) + "\n")
    for line in content["missed"]:
        print(f"missed: {line}")
    if content["missed"]:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
