"""The training engine: one loop for every task; interrupted runs resume.

A task defines what is trained (`Task`), a config how (`TrainingConfig`). `train` trains it in a
directory, `fit` without files.
"""

from equipool.training.artifacts import (
    Cell,
    Examination,
    Gallery,
    Picture,
    Table,
    cell_text,
    examination_folder,
    read_examination,
    write_examination,
)
from equipool.training.checkpoint import (
    BrokenCheckpointError,
    Checkpoints,
    StorageError,
    check_writable,
)
from equipool.training.config import SHAPES, TrainingConfig
from equipool.training.devices import OutOfMemoryError
from equipool.training.folder import (
    SPIKE,
    ConfigMismatchError,
    Record,
    RunFolder,
    count_spikes,
    read_record,
)
from equipool.training.loading import evaluate, examine, load_network
from equipool.training.loop import Fitted, Plan, Stop, fit, train, train_together
from equipool.training.over_steps import AtSteps, evaluate_over_steps, read_over_steps
from equipool.training.progress import Progress, progress_for_terminal, read_log, track
from equipool.training.step import make_network
from equipool.training.task import Batch, Loss, Shard, Task

__all__ = [
    "SHAPES", "SPIKE", "AtSteps", "Batch", "BrokenCheckpointError", "Cell", "Checkpoints",
    "ConfigMismatchError", "Examination", "Fitted", "Gallery", "Loss", "OutOfMemoryError",
    "Picture", "Plan", "Progress", "Record", "RunFolder", "Shard", "Stop", "StorageError", "Table",
    "Task", "TrainingConfig", "cell_text", "check_writable", "count_spikes", "evaluate",
    "evaluate_over_steps", "examination_folder", "examine", "fit", "load_network", "make_network",
    "progress_for_terminal", "read_examination", "read_log", "read_over_steps", "read_record",
    "track", "train", "train_together", "write_examination",
]  # fmt: skip
