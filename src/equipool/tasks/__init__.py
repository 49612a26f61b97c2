"""The experiments: data, network, loss and evaluation of each."""

from equipool.tasks.median import MedianTask
from equipool.training.task import Task

TASKS: dict[str, type[Task]] = {task.name: task for task in (MedianTask,)}

__all__ = ["TASKS", "MedianTask"]
