"""The tasks of all experiments. Importing it imports torch; `presets.py` does not."""

from equipool.experiments.bags.task import BagsTask
from equipool.experiments.median.task import MedianTask
from equipool.experiments.molecules import MoleculeTask
from equipool.experiments.omniglot.task import OmniglotTask
from equipool.training.task import Task

TASKS: dict[str, type[Task]] = {
    task.name: task for task in (MedianTask, OmniglotTask, MoleculeTask, BagsTask)
}

__all__ = ["TASKS", "BagsTask", "MedianTask", "MoleculeTask", "OmniglotTask"]
