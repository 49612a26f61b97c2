"""The training engine: one loop for every task; interrupted runs resume.

A task defines what is trained (`Task`), a config how (`TrainingConfig`). `train` trains it in a
directory.
"""

from equipool.training.checkpoint import ConfigMismatchError, RunFolder
from equipool.training.config import TrainingConfig
from equipool.training.evaluation import (
    AtSteps,
    evaluate,
    evaluate_over_steps,
    load_network,
    read_over_steps,
)
from equipool.training.loop import Stop, train
from equipool.training.progress import Progress, read_log
from equipool.training.record import Record, count_spikes, read_record
from equipool.training.step import make_network
from equipool.training.task import Batch, Loss, Shard, Task, generator_for

__all__ = [
    "AtSteps", "Batch", "ConfigMismatchError", "Loss", "Progress", "Record",
    "RunFolder", "Shard", "Stop", "Task", "TrainingConfig", "count_spikes", "evaluate",
    "evaluate_over_steps", "generator_for", "load_network", "make_network",
    "read_log", "read_over_steps", "read_record", "train",
]  # fmt: skip
