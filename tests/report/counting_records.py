"""Records of runs that never were, of a task where more is better."""

from dataclasses import replace

from records import record

from equipool.experiments.registry import OmniglotTask
from equipool.training import TrainingConfig
from equipool.training.config import chosen_config


def counting(validation, test, aggregation="sum", seed=0):
    """A record of the task omniglot with these accuracies."""
    one = record(validation, aggregation, seed=seed)
    task = OmniglotTask(aggregation, embedding=8, seed=seed)
    for entry, v, t in zip(one.curve, validation, test, strict=True):
        entry["metrics"] = {"validation_accuracy": v, "test_accuracy": t, "train_accuracy": v + 1}
    config = chosen_config(task, TrainingConfig(steps=one.steps))
    return replace(one, task="omniglot", config=config, metrics=one.curve[-1]["metrics"])


def made(
    test,
    aggregation="sum",
    *,
    validation=None,
    seconds=1.0,
    learning_rate=1e-3,
    batch_size=8,
    precision="32-true",
    seed=0,
):
    """A record with these accuracies on test characters, half of them on training characters, and
    1 / k of them on test sets of k characters; there is no set of nine. `seconds` are of a step."""
    one = counting(test if validation is None else validation, test, aggregation, seed)
    one.config["fields"]["batch_size"] = batch_size
    one.config["training"] |= {"learning_rate": learning_rate, "precision": precision}
    for entry, accuracy in zip(one.curve, test, strict=True):
        shares = {f"test_accuracy_{k}": accuracy / k for k in range(1, 11) if k != 9}
        entry["metrics"] |= shares | {"train_accuracy": accuracy / 2}
        entry["training_seconds"] = entry["step"] * seconds
    return replace(one, training_seconds=one.steps * seconds)
