"""The experiments by name, and settings that belong together.

Nothing here imports torch: the help lists the experiments and their presets without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Preset:
    """Settings to start from.

    Args:
        about: what it is for.
        recipe: class method of the task that makes it with these fields.
        training: training settings.
        axes: values of fields that `equipool sweep` runs in turn.
    """

    about: str
    recipe: str
    training: Mapping[str, Any]
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """Where a task is, and its presets.

    Args:
        about: what is learned.
        module: where the task's class is.
        kind: the name of the class.
        presets: settings to start from.
        training: training settings that differ from the defaults of `TrainingConfig`.
    """

    about: str
    module: str
    kind: str
    presets: Mapping[str, Preset]
    training: Mapping[str, Any] = field(default_factory=dict)


METHODS = ("sum", "attention", "equilibrium")

MEDIAN = Experiment(
    "the median of 100 numbers",
    "equipool.experiments.median.task",
    "MedianTask",
    {
        "quick": Preset(
            "a few minutes on two cores, enough to rank the methods",
            "quick",
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
            "the paper's settings: 10 million steps, seven sizes, five seeds",
            "paper",
            {"steps": 10_000_000},
            {
                "aggregation": METHODS,
                "embedding": (4, 8, 16, 32, 64, 128, 256),
                "seed": (0, 1, 2, 3, 4),
            },
        ),
    },
)

OMNIGLOT = Experiment(
    "the number of different characters in a set of handwritten ones",
    "equipool.experiments.omniglot.task",
    "OmniglotTask",
    {
        "quick": Preset(
            "a few minutes on two cores, enough to beat guessing",
            "quick",
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
            "the paper's settings: 10 million steps",
            "paper",
            {"steps": 10_000_000, "aux_weight": 1e-4},
            {"aggregation": METHODS},
        ),
    },
)

MOLECULES = Experiment(
    "properties of molecules, from OGB's data sets or your own table",
    "equipool.experiments.molecules.task",
    "MoleculeTask",
    {
        "quick": Preset(
            "molhiv with a small network, a few minutes on two cores",
            "quick",
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
            "the paper's settings: molpcba, 10 million steps, two networks, four readouts",
            "paper",
            {"steps": 10_000_000, "aux_weight": 0.0},
            {
                "aggregation": ("sum", "attention", "pna", "equilibrium"),
                "convolution": ("gcn", "gin"),
            },
        ),
    },
    {"aux_weight": 0.0},  # the task has weights of its own
)

EXPERIMENTS = {"median": MEDIAN, "omniglot": OMNIGLOT, "molecules": MOLECULES}


def find_preset(task: str, name: str) -> Preset:
    """A task's preset."""
    known = EXPERIMENTS[task].presets
    if name not in known:
        raise ValueError(f"--preset is {name!r}, expected one of {', '.join(known)}")
    return known[name]
