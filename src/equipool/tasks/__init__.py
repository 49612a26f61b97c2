"""The experiments: data, network, loss and evaluation of each."""

from equipool.tasks.median import MedianTask
from equipool.tasks.molecules import MoleculeTask
from equipool.tasks.omniglot import OmniglotTask
from equipool.training.task import Task

TASKS: dict[str, type[Task]] = {
    task.name: task for task in (MedianTask, OmniglotTask, MoleculeTask)
}

__all__ = ["TASKS", "MedianTask", "MoleculeTask", "OmniglotTask"]
