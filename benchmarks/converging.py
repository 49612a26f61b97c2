"""Does the layer reach its minimum? Jets, trained plainly and by `equipool.converging`.

    python benchmarks/converging.py --seeds 3 --out benchmarks/records/NAME.jsonl

Trains the same small network with both recipes on the first fold, minutes on one core each, and
tests it with other numbers of inner steps. The runs of records/equilibrium.jsonl on jets are older,
by a task of the training engine; their lines have its settings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from bags_data import Array, Bags, split
from recording import arguments, header, write
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn import functional

import equipool
from equipool.recipes import AUX_WEIGHT

STEPS = (1, 2, 5, 10, 20, 50, 100, 300)
WIDTH, CHANNELS, HIDDEN, BATCH, RATE = 64, 32, (64, 32, 16), 64, 1e-3


def plain() -> dict[str, Any]:
    """Ten steps of bounded length, unrolled."""
    solver = equipool.Nesterov(momentum=0.5, max_step=0.5, curvature_safe=True)
    return {"solver": solver, "steps": 10}


RECIPES: dict[str, tuple[Callable[[], dict[str, Any]], float]] = {
    "plain": (plain, 0.0),
    "converging": (equipool.converging, AUX_WEIGHT),
}


class Network(nn.Module):
    """Encodes elements `x [N, C]`, pools them by `index`, and gives a logit for each bag."""

    def __init__(self, num_features: int, options: dict[str, Any]) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(num_features, WIDTH), nn.ReLU())
        potential = equipool.ResNetPotential(WIDTH, CHANNELS, hidden=HIDDEN)
        self.pool = equipool.EquilibriumAggregation(WIDTH, CHANNELS, potential=potential, **options)
        self.head = nn.Sequential(nn.Linear(CHANNELS, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(
        self, x: Tensor, index: Tensor, steps: int | None = None
    ) -> tuple[Tensor, equipool.Solution]:
        options = {} if steps is None else {"steps": steps}
        solution = self.pool.solve(self.encode(x), index, **options)
        return self.head(solution.y).squeeze(-1), solution


def packed(bags: Bags) -> tuple[Tensor, Tensor]:
    """All elements `[N, C]`, and the bag of each."""
    sizes = torch.tensor([len(bag) for bag in bags])
    x = torch.from_numpy(np.concatenate(bags))
    return x, torch.arange(len(bags)).repeat_interleave(sizes)


def train(bags: Bags, labels: Array, recipe: str, steps: int, seed: int) -> Network:
    """Adam with a cosine schedule on the cross entropy, and the auxiliary loss of the recipe."""
    torch.manual_seed(seed)
    make, weight = RECIPES[recipe]
    network = Network(bags[0].shape[1], make())
    adam = torch.optim.Adam(network.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    for _ in range(steps):
        chosen = torch.randint(len(bags), (BATCH,)).tolist()
        logits, solution = network(*packed([bags[at] for at in chosen]))
        targets = torch.from_numpy(labels[chosen]).float()
        loss = functional.binary_cross_entropy_with_logits(logits, targets)
        adam.zero_grad()
        (loss + weight * solution.aux_loss).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        adam.step()
        schedule.step()
    return network.eval()


@torch.no_grad()
def evaluate(network: Network, bags: Bags, labels: Array) -> dict[str, list[Any]]:
    """The area under the ROC curve, and how far the search came, with each number of steps."""
    found: dict[str, list[Any]] = {}
    x, index = packed(bags)
    for steps in STEPS:
        logits, solution = network(x, index, steps)
        row = {
            "num_steps": steps,
            "test_auc": float(roc_auc_score(labels, logits.numpy())),
            "residual": solution.residual.median().item(),
            "residual_99": solution.residual.quantile(0.99).item(),
            "converged": solution.converged.float().mean().item(),
        }
        for name, value in row.items():
            found.setdefault(name, []).append(value)
    return found


def main() -> None:
    chosen = arguments(__doc__, recipe=tuple(RECIPES), seeds=3, steps=2000)
    torch.set_num_threads(1)
    (bags, labels), test = split("jets", 0, 0)
    elements = np.concatenate(bags)
    mean, deviation = elements.mean(0), elements.std(0).clip(min=1e-6)
    bags = [(bag - mean) / deviation for bag in bags]
    others = [(bag - mean) / deviation for bag in test[0]]
    rows = []
    for recipe in chosen.recipe:
        for seed in range(chosen.seeds):
            network = train(bags, labels, recipe, chosen.steps, seed)
            found = evaluate(network, others, test[1])
            rows.append({"part": "jets", "label": recipe, "seed": seed, "over_steps": found})
            areas = zip(STEPS, found["test_auc"], strict=True)
            print(f"{recipe}, seed {seed}:", ", ".join(f"{n}: {area:.4f}" for n, area in areas))
            write(chosen.out, header(chosen.device), rows)


if __name__ == "__main__":
    main()
