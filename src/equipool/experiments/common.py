"""What the experiments share: names and presets, the settings of their equilibrium layers, and the
folder of their data.

Nothing here imports torch: the help lists the experiments and their presets without it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any

from equipool.settings import OneOf, Part, Range, Share, check_fields

if TYPE_CHECKING:
    from equipool.aggregation import EquilibriumAggregation
    from equipool.training import Task

# A part (solver, start, ...) is the text of its name and its arguments, such as
# "newton:damping=0.01".
SOLVER = Part("equipool.solvers.Solver")
DIFFERENTIATION = Part("equipool.differentiation.Differentiation")
START = Part("equipool.starts.Start")
STEPS = Part("equipool.steps.Steps")

Aggregation = Annotated[str, OneOf("equipool.baselines.AGGREGATIONS")]
StepsSetting = Annotated[int, Range(least=0)] | Annotated[str, STEPS]


@dataclass(frozen=True, kw_only=True)
class InnerLoop:
    """Fields of a task that has equilibrium layers. The defaults are the paper's.

    Args:
        solver: inner optimiser.
        differentiation: gradient of the layer.
        start: first y of each set.
        scaling: how the energy grows with the number of elements.
        regularizer_weight: initial weight of the regulariser.
        potential_dropout: dropout rate of the potential's hidden units.
        bias_std: standard deviation of the potential's initial biases.

    >>> InnerLoop(solver="nesterov:momentum=0.5,learning_rate=0.1").solver
    'nesterov:learning_rate=0.1,momentum=0.5'
    """

    solver: Annotated[str, SOLVER] = "nesterov"
    differentiation: Annotated[str, DIFFERENTIATION] = "unrolled"
    start: Annotated[str, START] = "zero"
    scaling: Annotated[str, OneOf("equipool.energy.SCALINGS")] = "log"
    regularizer_weight: Annotated[float, Range(above=0)] = 0.1
    potential_dropout: Share = 0.0
    bias_std: Annotated[float, Range(least=0)] = 0.0

    def __post_init__(self) -> None:
        check_fields(self)

    def equilibrium_layer(
        self, in_channels: int, out_channels: int, potential: Sequence[int], steps: int | str
    ) -> EquilibriumAggregation:
        """A layer with these settings, whose potential has layers of these sizes.

        Example:
            >>> loop = InnerLoop(start="learned:value=1.0")
            >>> loop.equilibrium_layer(3, 8, (16, 16, 4), steps=5).start
            LearnedStart(8, value=1.0)
        """
        from equipool.aggregation import EquilibriumAggregation
        from equipool.potentials.resnet import ResNetPotential
        from equipool.regularizers import SquaredNorm

        channels, sizes = (in_channels, out_channels), tuple(potential)
        return EquilibriumAggregation(
            *channels,
            potential=ResNetPotential(
                *channels, sizes, dropout=self.potential_dropout, bias_std=self.bias_std
            ),
            regularizer=SquaredNorm(self.regularizer_weight),
            solver=SOLVER.build(self.solver),
            differentiation=DIFFERENTIATION.build(self.differentiation),
            start=START.build(self.start, out_channels=out_channels),
            steps=steps if isinstance(steps, int) else STEPS.build(steps),
            scaling=self.scaling,  # type: ignore[arg-type]
        )


_chosen: ContextVar[str | Path | None] = ContextVar("the data folder", default=None)


def data_folder() -> Path:
    """The directory that data is read from and downloaded to: that of `using_data_folder`, else the
    environment variable EQUIPOOL_DATA, else `cache_folder()`. It need not exist. The location of
    the data does not identify a run, so it is not a field of a task.

    Example:
        >>> with using_data_folder("my data"):
        ...     data_folder().name
        'my data'
    """
    found = _chosen.get() or os.environ.get("EQUIPOOL_DATA")
    return Path(found).expanduser() if found else cache_folder()


def cache_folder() -> Path:
    """`equipool` in the user's cache directory (XDG_CACHE_HOME, or `~/.cache`)."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # the XDG standard requires that a relative path be ignored
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "equipool"


@contextmanager
def using_data_folder(given: str | Path | None) -> Iterator[None]:
    """Inside the block `data_folder()` returns `given`; None changes nothing."""
    token = _chosen.set(given or _chosen.get())
    try:
        yield
    finally:
        _chosen.reset(token)


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
