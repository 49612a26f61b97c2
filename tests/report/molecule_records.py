"""Records of runs that never were, on molecules."""

from dataclasses import replace

from records import record

from equipool.experiments.registry import MoleculeTask
from equipool.training import TrainingConfig
from equipool.training.config import chosen_config

TRAINING = 39  # molecules, so that ten batches of 4 are an epoch


def on_molecules(
    valid,
    test,
    aggregation="sum",
    seed=0,
    measure="roc_auc",
    seconds=1.0,
    training=TRAINING,
    **fields,
):
    """A record of an epoch between two evaluations, of so many seconds a step, with these scores
    of the validation and the test part. Losses are the scores and 1."""
    made = record(valid, aggregation, seed=seed, seconds_per_step=seconds)
    task = MoleculeTask(aggregation, seed=seed, batch_size=4, **fields)
    for entry, v, t in zip(made.curve, valid, test, strict=True):
        entry["metrics"] = {}
        for part, score in (("valid", v), ("test", t)):
            sign = -1 if measure == "mae" else 1
            found = {"score": score, measure: sign * score, "loss": score + 1}
            entry["metrics"] |= {f"{part}_{name}": value for name, value in found.items()}
    data = {"molecules": {"train": training, "valid": 5, "test": 5}}
    config = chosen_config(task, TrainingConfig(steps=made.steps)) | {"data": data}
    return replace(made, task="molecules", config=config, metrics=made.curve[-1]["metrics"])
