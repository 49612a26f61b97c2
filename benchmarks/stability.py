"""Which options keep the training of the layer from spiking.

    python benchmarks/stability.py --seeds 3 --steps 300                       # minutes on one core
    python benchmarks/stability.py --out benchmarks/records/NAME.jsonl         # hours

Every option trains a small network for the median with several seeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median_low
from typing import Any

import torch
from medians import MedianNetwork, draw, train
from recording import arguments, header, write

from equipool import EquilibriumAggregation, LearnedStart, Nesterov, ResNetPotential

CHANNELS, WIDTH, INNER_STEPS, BATCH, SET_SIZE, TEST_SETS = 4, 16, 5, 16, 16, 4000
# Rate of Adam, and squared outputs of the potential.
SETTINGS = {"hard": (1e-2, 8), "usual": (1e-3, 8), "one output": (1e-2, 1)}


@dataclass(frozen=True)
class Option:
    """One way to train; everything else is as in the plain recipe."""

    solver: tuple[tuple[str, Any], ...] = ()
    start: float | None = None  # learned, from this value
    bias_std: float = 0.0  # deviation of the potential's first biases
    clip: float | None = None
    warm_up: float = 0.0  # share of the steps
    solver_rate: float = 1.0

    def network(self, outputs: int) -> MedianNetwork:
        potential = ResNetPotential(
            CHANNELS, CHANNELS, hidden=(WIDTH, WIDTH, outputs), bias_std=self.bias_std
        )
        start = None if self.start is None else LearnedStart(CHANNELS, self.start)
        layer = EquilibriumAggregation(
            CHANNELS, CHANNELS, potential=potential, solver=Nesterov(**dict(self.solver)),
            steps=INNER_STEPS, **({} if start is None else {"start": start}),
        )  # fmt: skip
        return MedianNetwork(layer, CHANNELS, CHANNELS, WIDTH)


SHORT = (("max_step", 0.5),)
SLOW = (("momentum", 0.5), *SHORT)
SAFE = (*SLOW, ("curvature_safe", True))
OPTIONS = {
    "plain recipe": Option(),
    "random biases": Option(bias_std=0.3),
    "step size from 0.02": Option((("learning_rate", 0.02),)),
    "momentum from 0.5": Option((("momentum", 0.5),)),
    "steps no longer than 0.5": Option(SHORT),
    "step size below 1 / curvature": Option((("curvature_safe", True),)),
    "step size and momentum 10 times slower": Option(solver_rate=0.1),
    "gradient clipped at 1": Option(clip=1.0),
    "warm-up": Option(warm_up=0.2),
    "start at 1, learned": Option(start=1.0),
    "steps + curvature": Option((*SHORT, ("curvature_safe", True))),
    "steps + momentum": Option(SLOW),
    "steps + momentum + curvature": Option(SAFE),
    "steps + momentum + clipping": Option(SLOW, clip=1.0),
    "steps + momentum + start": Option(SLOW, start=1.0),
    "steps + momentum + curvature + biases": Option(SAFE, bias_std=0.3),
}


def count_spikes(losses: torch.Tensor) -> int:
    """Losses above ten times the median of the last 1,000 finite ones before them, from the
    hundredth on."""
    known = losses[losses.isfinite()].tolist()
    medians = (median_low(known[max(at - 1000, 0) : at]) for at in range(100, len(known)))
    return sum(loss > 10 * median for loss, median in zip(known[100:], medians, strict=True))


def measure(name: str, setting: str, seeds: int, steps: int) -> dict[str, Any]:
    """A row: a number for each seed."""
    option, (rate, outputs) = OPTIONS[name], SETTINGS[setting]
    losses, errors, rates = [], [], []
    x, median = draw(TEST_SETS, SET_SIZE, torch.Generator().manual_seed(10**6))
    for seed in range(seeds):
        torch.manual_seed(seed)
        network = option.network(outputs)
        losses.append(train(
            network, lambda generator: draw(BATCH, SET_SIZE, generator), steps=steps, rate=rate,
            seed=seed, clip=option.clip, warm_up=round(option.warm_up * steps), decay=False,
            solver_rate=option.solver_rate,
        ))  # fmt: skip
        with torch.no_grad():
            errors.append((network(x) - median).square().mean().item())
        rates.append(network.layer.solver.learning_rate.item())
    by_step = torch.stack(losses, dim=1)
    return {
        "part": "rows", "setting": setting, "option": name,
        "spikes": [count_spikes(losses) for losses in by_step.unbind(1)],
        "not_finite": (~by_step.isfinite()).sum(0).tolist(),
        "largest": by_step[len(by_step) // 2 :].amax(0).tolist(),
        "errors": errors, "learning_rates": rates, "first": by_step[0].tolist(),
    }  # fmt: skip


def main() -> None:
    chosen = arguments(
        __doc__, option=tuple(OPTIONS), setting=tuple(SETTINGS), seeds=20, steps=1000
    )
    head = header(chosen.device) | {"seeds": chosen.seeds, "steps": chosen.steps}
    rows = []
    for setting in chosen.setting:
        for option in chosen.option:
            rows.append(measure(option, setting, chosen.seeds, chosen.steps))
            error = torch.tensor(rows[-1]["errors"]).median()
            print(f"{setting}, {option}: {sum(rows[-1]['spikes'])} spikes, error {error:.1e}")
            write(chosen.out, head, rows)


if __name__ == "__main__":
    main()
