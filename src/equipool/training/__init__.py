"""The training engine: one loop for every task, from which a run can be gone on with at any time.

A task says what is trained (`Task`), a config how (`TrainingConfig`), and `train` does it.
"""

from equipool.training.checkpoint import BrokenCheckpointError
from equipool.training.config import TrainingConfig
from equipool.training.examination import Examination
from equipool.training.files import StorageError
from equipool.training.folder import ConfigMismatchError
from equipool.training.loading import evaluate, examine, load_network
from equipool.training.log import read_log
from equipool.training.loop import Plan, train
from equipool.training.record import Record, read_record
from equipool.training.task import Batch, Loss, Shard, Task
from equipool.training.together import train_together

__all__ = [
    "Batch",
    "BrokenCheckpointError",
    "ConfigMismatchError",
    "Examination",
    "Loss",
    "Plan",
    "Record",
    "Shard",
    "StorageError",
    "Task",
    "TrainingConfig",
    "evaluate",
    "examine",
    "load_network",
    "read_log",
    "read_record",
    "train",
    "train_together",
]
