"""Influence against deletion: accuracy of `equipool.influence`, its time, and deletion curves.

    python benchmarks/influence.py --out benchmarks/records/cpu-influence.json
    python benchmarks/influence.py --run runs/median        # a trained network of your own

Trains a small network for the median with `equipool.converging` first, in some minutes on one core;
the record has its settings. To measure another network, make a `Subject` of it and call `accuracy`,
`times` and `deletion_curve`. Exits with 1 if a goal is missed.
"""

from __future__ import annotations

import copy
import itertools
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

import equipool
from equipool import EquilibriumAggregation, Fixed, Polished
from equipool.baselines import AttentionPooling
from equipool.bench.command import Commit, Out, check_out, full_command
from equipool.bench.record import FORMAT, git_commit
from equipool.comparison.measure import seconds_of
from equipool.comparison.result import Seconds, three_digits
from equipool.environment import hardware, now, versions
from equipool.experiments.data import generator_for
from equipool.experiments.median import MedianTask
from equipool.experiments.median.data import sample_sets
from equipool.experiments.median.network import MedianNetwork
from equipool.experiments.presets import RECIPES
from equipool.training import TrainingConfig, fit, load_network

RANK_CORRELATION = 0.95  # goals: at least,
RELATIVE_ERROR = 0.05  # at most,
TIMES_A_SOLVE = 5.0  # at most
FRACTIONS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
TIGHT = 1e-7  # tolerance of the searches that delete; they stop at a thousandth of it
NEWTON_STEPS = 20
CPU = torch.device("cpu")

app = typer.Typer(add_completion=False)


@dataclass(frozen=True, eq=False)
class Subject:
    """A trained layer, a function of its output `[rows, K] -> [rows]`, and padded sets
    `x [B, L, C]` with a `mask [B, L]` of the real elements."""

    layer: EquilibriumAggregation
    head: Callable[[Tensor], Tensor]
    x: Tensor
    mask: Tensor

    def predict(self, mask: Tensor) -> Tensor:
        """The function of these elements alone, `[B, L] -> [B]`."""
        return self.head(self.layer(self.x, mask=mask))


@dataclass(frozen=True)
class Plan:
    """How much to run: sets whose elements are really deleted, sets to time and to draw curves
    of, repeats of the timing, and steps of training."""

    deleted_sets: int = 8
    timed_sets: int = 256
    repeats: int = 5
    steps: int = 700
    set_size: int = 100


def task_of(plan: Plan, aggregation: str, seed: int) -> MedianTask:
    """A small network for the median, with the settings that converge. The regulariser is strong
    enough for 80 steps to reach the minimum after a short training."""
    recipe = RECIPES["converging"]
    solver = {**recipe["solver"], "learning_rate": 0.5}
    return MedianTask(
        aggregation, embedding=16, batch_size=16, seed=seed, set_size=plan.set_size, width=48,
        potential_output=8, inner_steps=recipe["inner_steps"], solver=solver,
        differentiation=recipe["differentiation"], regularizer_weight=10.0, bias_std=0.3,
        evaluation_sets=1000,
    )  # fmt: skip


def training_of(plan: Plan) -> TrainingConfig:
    return TrainingConfig(
        steps=plan.steps, learning_rate=3e-3, schedule="cosine", warmup_steps=min(100, plan.steps),
        aux_weight=1e-3, evaluate_every=plan.steps,
    )  # fmt: skip


def median_sets(num_sets: int, set_size: int) -> Tensor:
    """Sets that no training has seen, `[num_sets, set_size, 1]`."""
    generator = generator_for(CPU, "median", "influence")
    return sample_sets((num_sets,), set_size, generator)[0].unsqueeze(-1)


def median_subject(network: nn.Module, x: Tensor) -> Subject:
    if not isinstance(network, MedianNetwork) or not isinstance(
        network.aggregation, EquilibriumAggregation
    ):
        raise typer.BadParameter("expected a run of the median with the equilibrium layer")
    mask = torch.ones(x.shape[:2], dtype=torch.bool)
    return Subject(network.aggregation, network.predict, x, mask)


def precise(subject: Subject, network: nn.Module) -> Subject:
    """The same in float64, with Newton steps after the layer's own search, until no component of
    the gradient exceeds `TIGHT`."""
    layer = copy.deepcopy(subject.layer).double().eval()
    layer.solver = Polished(layer.solver, NEWTON_STEPS)
    layer.steps = Fixed(layer.num_steps + NEWTON_STEPS, TIGHT)
    head = copy.deepcopy(network).double().predict
    return Subject(layer, head, subject.x.double(), subject.mask)


def accuracy(subject: Subject, network: nn.Module) -> list[dict[str, Any]]:
    """Newton's step against deletion, for the minimum in float64 and for the layer as it is.

    An element is deleted by searching for the minimum without it, from the minimum with it."""
    exact = precise(subject, network)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        true = _influence(exact, "exact")
        rows = [
            ("the minimum, float64", _influence(exact, "newton")),
            (f"{subject.layer.num_steps} steps, float32", _influence(subject, "newton")),
        ]
    kept = true.converged.unsqueeze(-1) & subject.mask & true.solved
    return [{"search": name, **_agreement(found, true, kept)} for name, found in rows]


def _influence(subject: Subject, method: Any) -> equipool.Influence:
    return equipool.influence(
        subject.layer, subject.x, mask=subject.mask, function=subject.head, method=method
    )


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
        "not_definite": int((~found.solved).sum()),
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


def times(subject: Subject, repeats: int) -> dict[str, Any]:
    """Seconds of one solve without gradients and of the influence of all elements, which take
    turns; the influence includes a solve."""

    def solve() -> None:
        with torch.no_grad():
            subject.layer(subject.x, mask=subject.mask)

    def influence() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _influence(subject, "newton")

    steps = {"solve": solve, "influence": influence}
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
        "num_steps": subject.layer.num_steps,
        "channels": subject.layer.out_channels,
        "repeats": repeats,
        "seconds": {name: asdict(Seconds.of(values)) for name, values in found.items()},
        "ratio": asdict(Seconds.of(ratios)),
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


def scores_of(subject: Subject, rival: MedianNetwork, seed: int = 0) -> dict[str, Tensor]:
    """What each method says an element adds to the output, `[B, L]`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = equipool.influence(
            subject.layer, subject.x, mask=subject.mask, function=subject.head, gradient=True
        )
    assert found.effect is not None
    assert found.gradient is not None
    generator = torch.Generator().manual_seed(seed)
    return {
        "influence": -found.effect,
        "gradient times input": (found.gradient * subject.x).sum(-1),
        "attention weights of another network": attention_weights(rival, subject.x),
        "random": torch.rand(subject.mask.shape, generator=generator),
    }


@torch.no_grad()
def attention_weights(network: MedianNetwork, x: Tensor) -> Tensor:
    """The weights of the elements in a network with attention pooling, averaged over its heads:
    `[B, L, C] -> [B, L]`."""
    pooling = network.aggregation
    assert isinstance(pooling, AttentionPooling)
    keys = pooling.keys(network.embedding(x)).unflatten(-1, pooling.query.shape)
    logits = (keys * pooling.query).sum(-1) / pooling.query.shape[1] ** 0.5
    return torch.softmax(logits, dim=1).mean(-1)


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
    time = content["time"]
    print(
        f"{time['elements']:,} elements of {time['sets']} sets: influence "
        f"{three_digits(1000 * time['seconds']['influence']['median'])} ms, one solve "
        f"{three_digits(1000 * time['seconds']['solve']['median'])} ms, ratio "
        f"{time['ratio']['median']:.2f} ({time['ratio']['fastest']:.2f}-"
        f"{time['ratio']['slowest']:.2f})"
    )
    for name, curve in content["curves"]["by"].items():
        print(f"deletion by {name}: mean change of the output {curve['area']:+.4f}")


@app.command()
def main(
    run: Annotated[Path | None, typer.Option(help="measure this run of the median")] = None,
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
    flags = {"run": run, "steps": steps, "sets": sets, "deleted": deleted, "size": size,
             "repeats": repeats, "seed": seed}  # fmt: skip
    content: dict[str, Any] = {
        "command": full_command("python benchmarks/influence.py", flags), "date": now(),
        "commit": commit or git_commit(), "versions": versions(), "hardware": hardware(CPU),
        "format": FORMAT, "plan": asdict(plan),
    }  # fmt: skip
    network, content["network"] = _trained(plan, "equilibrium", seed, run)
    rival, content["attention"] = _trained(plan, "attention", seed)
    x = median_sets(max(sets, deleted), size)
    subject = median_subject(network, x[:sets])
    content["accuracy"] = accuracy(median_subject(network, x[:deleted]), network)
    content["time"] = times(subject, repeats)
    curves = {name: deletion_curve(subject.predict, subject.mask, scores)
              for name, scores in scores_of(subject, rival).items()}  # fmt: skip
    content["curves"] = {
        "fractions": FRACTIONS,
        "by": {name: {"outputs": curve, "area": area(curve)} for name, curve in curves.items()},
    }
    content["missed"] = missed_goals(content)
    show(content)
    if out is not None:
        out.write_text(json.dumps(content, indent=1) + "\n")
    for line in content["missed"]:
        print(f"missed: {line}")
    if content["missed"]:
        raise typer.Exit(1)


def _trained(
    plan: Plan, aggregation: str, seed: int, run: Path | None = None
) -> tuple[Any, dict[str, Any]]:
    """A network, and how it was made."""
    if run is not None:
        return load_network(run), {"run": run.name}
    task, config = task_of(plan, aggregation, seed), training_of(plan)
    fitted = fit(task, config, CPU)
    about = {"task": asdict(task), "training": asdict(config), "metrics": fitted.record.metrics}
    return fitted.network, about


if __name__ == "__main__":
    app()
