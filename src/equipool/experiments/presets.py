"""The experiments by name, and settings that belong together.

Nothing here imports torch: the help lists the experiments and their presets without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from equipool.training import Task


@dataclass(frozen=True)
class Preset:
    """Settings to start from. The task's class method of the same name gives its fields."""

    about: str
    training: dict[str, Any]
    # values of fields that `equipool sweep` runs in turn
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """Where a task is, and its presets."""

    about: str  # what is learned
    where: str  # of the task's class, as module:Class
    presets: Mapping[str, Preset]
    # settings that differ from the defaults of `TrainingConfig`
    training: dict[str, Any] = field(default_factory=dict)

    def task(self) -> type[Task]:
        """The task's class; imports torch."""
        kind: type[Task] = resolve_name(self.where)
        return kind


def import_task(name: str) -> None:
    """Import the task of this name, if it is one of ours, so that its runs can be read."""
    if name in EXPERIMENTS:
        EXPERIMENTS[name].task()


_RANDOM = "random:min_steps=5,max_steps=40"
# How equilibrium layers are trained in any experiment: values of the fields that its task has, and
# the training setting `aux_weight` for a task without weights of its own.
RECIPES: dict[str, dict[str, Any]] = {
    "converging": {  # as `equipool.converging`
        "scaling": "log-mean",
        "regularizer_weight": 1.0,
        "solver": "nesterov:learning_rate=0.5,momentum=0.5,max_step=0.5,"
                  "curvature_safe=true",
        "differentiation": "truncated:num_steps=5",
        "inner_steps": _RANDOM,
        "local_steps": _RANDOM,
        "readout_aux_weight": 1e-3,
        "local_aux_weight": 1e-3,
        "aux_weight": 1e-3,
    },
}  # fmt: skip

METHODS = {"aggregation": ("sum", "attention", "equilibrium")}


def _quick(about: str, steps: int, learning_rate: float, every: int, **more: Any) -> Preset:
    """A preset of a few minutes that evaluates and saves every so many steps."""
    training = {
        "steps": steps, "learning_rate": learning_rate, "schedule": "cosine", **more,
        "evaluate_every": every, "checkpoint_every": every,
    }  # fmt: skip
    return Preset(about, {"log_every": 100} | training, METHODS)


def _paper(about: str, axes: Mapping[str, tuple[Any, ...]], **more: Any) -> Preset:
    about = f"the paper's settings: {about}"
    return Preset(about, {"steps": 10_000_000} | more, METHODS | dict(axes))


EXPERIMENTS = {
    "median": Experiment(
        "the median of 100 numbers",
        "equipool.experiments.median:MedianTask",
        {
            "quick": _quick(
                "a few minutes on two cores, enough to rank the methods", 1500, 0.01, every=250
            ),
            "paper": _paper(
                "10 million steps, seven sizes, five seeds",
                {"embedding": (4, 8, 16, 32, 64, 128, 256), "seed": (0, 1, 2, 3, 4)},
            ),
        },
    ),
    "omniglot": Experiment(
        "the number of different characters in a set of handwritten ones",
        "equipool.experiments.omniglot.task:OmniglotTask",
        {
            "quick": _quick(
                "a few minutes on two cores, enough to beat guessing",
                3000, 1e-3, every=500, warmup_steps=100, aux_weight=0.0,
            ),
            "paper": _paper("10 million steps", {}, aux_weight=1e-4),
        },
    ),
    "molecules": Experiment(
        "properties of molecules, from OGB's data sets or your own table",
        "equipool.experiments.molecules.task:MoleculeTask",
        {
            "quick": _quick(
                "molhiv with a small network, a few minutes on two cores",
                1000, 3e-3, every=250, warmup_steps=50, aux_weight=0.0, log_every=50,
            ),
            "paper": _paper(
                "molpcba, 10 million steps, two networks, four readouts",
                {"aggregation": ("sum", "attention", "pna", "equilibrium"),
                 "convolution": ("gcn", "gin")},
                aux_weight=0.0,
            ),
        },
        {"aux_weight": 0.0},  # the task has weights of its own
    ),
}  # fmt: skip
