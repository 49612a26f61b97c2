"""`equipool.influence` against deleting each element: accuracy, time, and deletion curves.

    python benchmarks/influence.py --out benchmarks/records/NAME.jsonl

Trains two small networks for the median, one of them with attention pooling, in minutes on one
core.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from itertools import pairwise
from statistics import fmean
from typing import Any

import torch
from medians import MedianNetwork, draw, train
from recording import arguments, header, milliseconds, write
from torch import Tensor

import equipool
from equipool import EquilibriumAggregation, FixedSteps, Newton, ResNetPotential
from equipool.baselines import AttentionPooling
from equipool.recipes import AUX_WEIGHT

ELEMENTS, CHANNELS, HIDDEN = 16, 16, (48, 48, 8)
FRACTIONS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)  # of the elements, removed
STEPS, LONGER = 40, 200  # of the search
TIGHT = 1e-7  # tolerance of the search in float64


def trained(pool: torch.nn.Module, steps: int, size: int, aux_weight: float) -> MedianNetwork:
    torch.manual_seed(0)
    network = MedianNetwork(pool, ELEMENTS, CHANNELS, 48)
    train(network, lambda generator: draw(16, size, generator), steps=steps, rate=3e-3,
          aux_weight=aux_weight, warm_up=min(100, steps // 4))  # fmt: skip
    return network.eval()


def influence(network: MedianNetwork, x: Tensor, method: str = "newton") -> equipool.Influence:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sets that have not converged are counted
        return equipool.influence(
            network.layer, x, function=lambda y: network.head(y)[:, 0], method=method
        )


def accuracy(network: MedianNetwork, x: Tensor) -> list[dict[str, Any]]:
    """Newton's step against deletion, for the minimum in float64 and for the layer as it is. An
    element is deleted by searching for the minimum without it, from the minimum with it."""
    exact = copy.deepcopy(network).double()
    exact.layer.solver = Newton(after=exact.layer.solver, num_steps=20)
    exact.layer.steps = FixedSteps(STEPS + 20, TIGHT)
    true = influence(exact, x.double(), "exact")
    rows = []
    for search, found in (("the minimum, float64", influence(exact, x.double())),
                          (f"{STEPS} steps, float32", influence(network, x))):  # fmt: skip
        kept = true.converged.unsqueeze(-1) & true.solved & found.solved
        estimate, effect = found.effect.double(), true.effect
        sets = [at for at in range(len(x)) if int(kept[at].sum()) > 2]
        ranks = [spearman(estimate[at][kept[at]], effect[at][kept[at]]) for at in sets]
        errors = ((estimate - effect).abs() / effect.abs())[kept]
        rows.append({
            "part": "accuracy", "search": search, "sets": len(x), "elements": int(kept.sum()),
            "rank_correlation": fmean(ranks), "rank_correlation_worst": min(ranks),
            "median_relative_error": errors.quantile(0.5).item(),
            "relative_error_90": errors.quantile(0.9).item(),
        })  # fmt: skip
    return rows


def spearman(a: Tensor, b: Tensor) -> float:
    """Rank correlation of two vectors without ties.

    Example:
        >>> spearman(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 8.0, 9.0]))
        1.0
    """
    ranks = [values.argsort().argsort().double() for values in (a, b)]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])


@torch.no_grad()
def converged(layer: EquilibriumAggregation, x: Tensor) -> dict[str, float]:
    """The share of sets that converge, by number of steps."""
    found = {}
    for steps in (STEPS, LONGER):
        longer = copy.deepcopy(layer)
        longer.steps = FixedSteps(steps)
        found[str(steps)] = longer.solve(x).converged.double().mean().item()
    return found


def scores(network: MedianNetwork, x: Tensor) -> dict[str, Tensor]:
    """What each method says an element adds to the output, `[B, L]`. Weights have no sign."""
    pool = network.layer
    found = {"random": torch.rand(x.shape[:2], generator=torch.Generator().manual_seed(0))}
    leaf = x.clone().requires_grad_()
    if isinstance(pool, AttentionPooling):
        with torch.no_grad():
            keys = pool.keys(x).unflatten(-1, pool.query.shape)
            logits = (keys * pool.query).sum(-1) / pool.query.shape[1] ** 0.5
            found["attention weights"] = logits.softmax(dim=1).mean(-1)
    else:
        found["influence"] = influence(network, x).effect
        pool = copy.deepcopy(pool)
        pool.differentiation = equipool.Implicit()  # the gradient of the minimum
    (gradient,) = torch.autograd.grad(network.head(pool(leaf)).sum(), leaf)
    return found | {"gradient times input": (gradient * x).sum(-1)}


def deletion_curve(predict: Callable[[Tensor], Tensor], mask: Tensor, order: Tensor) -> list[float]:
    """How the mean output changes as the elements with the largest scores `order [B, L]` are
    removed, the largest first."""
    rank = order.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    with torch.no_grad():
        outputs = [
            predict(mask & (rank >= round(fraction * mask.shape[1]))).double().mean().item()
            for fraction in FRACTIONS
        ]
    return [output - outputs[0] for output in outputs]


def area(curve: list[float]) -> float:
    """The mean height of a curve, by trapezes."""
    points = list(zip(FRACTIONS, curve, strict=True))
    pieces = [(b - a) * (s + t) / 2 for (a, s), (b, t) in pairwise(points)]
    return sum(pieces) / (FRACTIONS[-1] - FRACTIONS[0])


def curves(network: MedianNetwork, x: Tensor) -> dict[str, Any]:
    """Deletion curves of each score, in standard deviations of the outputs: of the output, and of
    the size of its change, which needs no sign."""
    mask = torch.ones(x.shape[:2], dtype=torch.bool)

    def predict(kept: Tensor) -> Tensor:
        return network.head(network.layer(x, mask=kept))[:, 0]

    with torch.no_grad():
        whole = predict(mask)
    deviation = whole.std()
    by = {}
    for name, order in scores(network, x).items():
        change = deletion_curve(lambda kept: predict(kept) / deviation, mask, order)
        size = deletion_curve(
            lambda kept: (predict(kept) - whole).abs() / deviation, mask, order.abs()
        )
        by[name] = {"change": change, "area": area(change), "size": size, "size_area": area(size)}
    return {"deviation": deviation.item(), "by": by}


def main() -> None:
    chosen = arguments(__doc__, steps=700, sets=256, deleted=8, size=100)
    torch.set_num_threads(1)
    potential = ResNetPotential(ELEMENTS, CHANNELS, hidden=HIDDEN)
    layer = EquilibriumAggregation(ELEMENTS, CHANNELS, potential=potential, **equipool.converging())
    networks = {
        "equilibrium": trained(layer, chosen.steps, chosen.size, AUX_WEIGHT),
        "attention": trained(AttentionPooling(ELEMENTS, CHANNELS), chosen.steps, chosen.size, 0.0),
    }
    ours = networks["equilibrium"]
    numbers, _ = draw(chosen.sets, chosen.size, torch.Generator().manual_seed(10**6))
    with torch.no_grad():
        sets = {name: one.embedding(numbers.unsqueeze(-1)) for name, one in networks.items()}
    ours.layer.steps = STEPS
    x = sets["equilibrium"]
    rows = accuracy(ours, x[: chosen.deleted])
    with torch.no_grad():
        solve = milliseconds(lambda: ours.layer(x), x.device)
    explain = milliseconds(lambda: influence(ours, x), x.device)
    ratio = {name: explain[name] / solve["median"] for name in ("median", "fastest", "slowest")}
    head = header(x.device) | {
        "converged": converged(ours.layer, x),
        "time": {"sets": len(x), "elements": len(x) * chosen.size, "channels": CHANNELS,
                 "milliseconds": {"solve": solve, "influence": explain}, "ratio": ratio},
        "fractions": FRACTIONS,
        "curves": {name: curves(one, sets[name]) for name, one in networks.items()},
    }  # fmt: skip
    for line in (*rows, head["converged"], ratio):
        print(line)
    write(chosen.out, head, rows)


if __name__ == "__main__":
    main()
