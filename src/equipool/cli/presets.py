"""Settings that belong together, by task and name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from equipool.experiments.registry import MedianTask, MoleculeTask, OmniglotTask


@dataclass(frozen=True)
class Preset:
    """Values of fields, and what a sweep goes through.

    Args:
        about: what it is for.
        fields: of the task.
        training: of the training settings.
        axes: values of fields that `equipool sweep` goes through.
    """

    about: str
    fields: Mapping[str, Any]
    training: Mapping[str, Any]
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


METHODS = ("sum", "attention", "equilibrium")

PRESETS: dict[str, dict[str, Preset]] = {
    "median": {
        "quick": Preset(
            "minutes on two cores, enough to order the methods",
            asdict(MedianTask.quick()),
            {
                "steps": 1500,
                "learning_rate": 0.01,
                "schedule": "cosine",
                "log_every": 100,
                "evaluate_every": 250,
                "checkpoint_every": 250,
            },
            {"aggregation": METHODS},
        ),
        "paper": Preset(
            "as in the paper: 10 million steps, seven sizes, five seeds",
            asdict(MedianTask.paper()),
            {"steps": 10_000_000},
            {
                "aggregation": METHODS,
                "embedding": (4, 8, 16, 32, 64, 128, 256),
                "seed": (0, 1, 2, 3, 4),
            },
        ),
    },
    "omniglot": {
        "quick": Preset(
            "minutes on two cores, enough to count better than by guessing",
            asdict(OmniglotTask.quick()),
            {
                "steps": 3000,
                "learning_rate": 1e-3,
                "schedule": "cosine",
                "warmup_steps": 100,
                "aux_weight": 0.0,
                "log_every": 100,
                "evaluate_every": 500,
                "checkpoint_every": 500,
            },
            {"aggregation": METHODS},
        ),
        "paper": Preset(
            "as in the paper: 10 million steps",
            asdict(OmniglotTask.paper()),
            {"steps": 10_000_000, "aux_weight": 1e-4},
            {"aggregation": METHODS},
        ),
    },
    "molecules": {
        "quick": Preset(
            "molhiv in a small network: minutes on two cores",
            asdict(MoleculeTask.quick()),
            {
                "steps": 1000,
                "learning_rate": 3e-3,
                "schedule": "cosine",
                "warmup_steps": 50,
                "aux_weight": 0.0,
                "log_every": 50,
                "evaluate_every": 250,
                "checkpoint_every": 250,
            },
            {"aggregation": METHODS},
        ),
        "paper": Preset(
            "as in the paper: molpcba, 10 million steps, two networks, four readouts",
            asdict(MoleculeTask.paper()),
            {"steps": 10_000_000, "aux_weight": 0.0},
            {
                "aggregation": ("sum", "attention", "pna", "equilibrium"),
                "convolution": ("gcn", "gin"),
            },
        ),
    },
}


def find_preset(task: str, name: str) -> Preset:
    """A task's preset."""
    known = PRESETS.get(task, {})
    if name not in known:
        expected = f"one of {', '.join(known)}" if known else f"none: {task} has no presets"
        raise ValueError(f"--preset is {name!r}, expected {expected}")
    return known[name]
