"""Records of runs that never were, of a task where more is better."""

from dataclasses import replace

from records import record

from equipool.tasks import OmniglotTask
from equipool.training import TrainingConfig
from equipool.training.config import chosen_config


def counting(validation, test, aggregation="sum", seed=0):
    """A record of the task omniglot with these accuracies."""
    made = record(validation, aggregation, seed=seed)
    task = OmniglotTask(aggregation, embedding=8, seed=seed)
    for entry, v, t in zip(made.curve, validation, test, strict=True):
        entry["metrics"] = {"validation_accuracy": v, "test_accuracy": t, "train_accuracy": v + 1}
    config = chosen_config(task, TrainingConfig(steps=made.steps))
    return replace(made, task="omniglot", config=config, metrics=made.curve[-1]["metrics"])
