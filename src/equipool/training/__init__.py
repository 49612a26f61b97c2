"""The training engine: one loop for every task; interrupted runs resume.

A task defines what is trained (`Task`), a config how (`TrainingConfig`). `train` trains it in a
directory.
"""

from equipool.training.config import Batch, Loss, Shard, Task, TrainingConfig, generator_for
from equipool.training.evaluation import (
    AtSteps,
    evaluate,
    evaluate_over_steps,
    load_network,
)
from equipool.training.folder import (
    ConfigMismatchError,
    Record,
    RunFolder,
    read_log,
    read_record,
)
from equipool.training.loop import Stop, train

__all__ = [
    "AtSteps", "Batch", "ConfigMismatchError", "Loss", "Record", "RunFolder", "Shard", "Stop",
    "Task", "TrainingConfig", "evaluate", "evaluate_over_steps", "generator_for", "load_network",
    "read_log", "read_record", "train",
]  # fmt: skip
