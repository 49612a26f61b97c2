"""Made-up records of runs, for the tests of the report and of the documentation's tables."""

import json
from dataclasses import asdict, replace

from equipool.experiments.median import MedianTask
from equipool.experiments.molecules.task import MoleculeTask
from equipool.experiments.omniglot import OmniglotTask
from equipool.report import read_runs
from equipool.training import Record, TrainingConfig
from equipool.training.config import chosen_config

FOUR_SETTINGS = ("solver.momentum", "solver.learning_rate", "solver.max_step", "bias_std")
HARDWARE = {"device": "cpu", "cpu": "abacus", "cores": 1}


def record(values, aggregation="sum", embedding=8, seed=0, seconds_per_step=1.0, **changed):
    """A record whose monitored metric took these values, an evaluation every 10 steps."""
    task = MedianTask(aggregation=aggregation, embedding=embedding, seed=seed)
    curve = [
        {
            "step": 10 * i,
            "seconds": 12.0 * i * seconds_per_step,
            "training_seconds": 10.0 * i * seconds_per_step,
            "metrics": {"mse": value, "mae": value},
        }
        for i, value in enumerate(values, start=1)
    ]
    last = {name: curve[-1][name] for name in ("seconds", "training_seconds", "metrics")}
    steps = 10 * len(values)
    made = Record(
        task="median", seed=seed, config=chosen_config(task, TrainingConfig(steps=steps)),
        versions={"torch": "2.13.0"}, hardware=HARDWARE, date="2026-01-01T00:00:00+00:00",
        steps=steps, complete=True, num_parameters=1234, best=None,
        curve=curve, spikes=0, skipped=0, **last,
    )  # fmt: skip
    return replace(made, **changed)


def changed(made, training=(), **fields):
    """The record with other settings."""
    config = made.config | {
        "fields": made.config["fields"] | fields,
        "training": made.config["training"] | dict(training),
    }
    return replace(made, config=config)


def counting(validation, test, aggregation="sum", seed=0, seconds=1.0):
    """A record of omniglot with these accuracies, half of the test's on training characters, and
    a k-th of it on test sets of k characters; there is no set of nine."""
    one = record(validation, aggregation, seed=seed, seconds_per_step=seconds)
    task = OmniglotTask(aggregation, embedding=8, seed=seed, batch_size=8)
    for entry, v, t in zip(one.curve, validation, test, strict=True):
        shares = {f"test_accuracy_{k}": t / k for k in range(1, 11) if k != 9}
        overall = {"validation_accuracy": v, "test_accuracy": t, "train_accuracy": t / 2}
        entry["metrics"] = shares | overall
    config = chosen_config(task, TrainingConfig(steps=one.steps))
    return replace(one, task="omniglot", config=config, metrics=one.curve[-1]["metrics"])


TRAINING_MOLECULES = 39  # ten batches of 4 are an epoch


def on_molecules(
    valid, test, aggregation="sum", seed=0, measure="roc_auc", seconds=1.0, training=None, **fields
):
    """A record of molecules with these scores, an epoch between evaluations. Losses are the scores
    plus 1."""
    made = record(valid, aggregation, seed=seed, seconds_per_step=seconds)
    task = MoleculeTask(aggregation, seed=seed, batch_size=4, **fields)
    for entry, v, t in zip(made.curve, valid, test, strict=True):
        entry["metrics"] = {}
        for part, score in (("valid", v), ("test", t)):
            sign = -1 if measure == "mae" else 1
            found = {"score": score, measure: sign * score, "loss": score + 1}
            entry["metrics"] |= {f"{part}_{name}": value for name, value in found.items()}
    data = {"molecules": {"train": training or TRAINING_MOLECULES, "valid": 5, "test": 5}}
    config = chosen_config(task, TrainingConfig(steps=made.steps)) | {"data": data}
    return replace(made, task="molecules", config=config, metrics=made.curve[-1]["metrics"])


def log_point(step, **more):
    """A training entry of a log."""
    times = {"step": step, "seconds": 1.2 * step, "training_seconds": 1.0 * step}
    return times | {"loss": 1.0 / step, "skipped": 2, "spikes": 1} | more


def rows(table):
    """Rows of a table as dictionaries."""
    return [dict(zip(table.headings, row, strict=True)) for row in table.rows]


def write_records(folder, *records):
    """A file for each; their names."""
    files = [folder / f"{number}.json" for number in range(len(records))]
    for file, one in zip(files, records, strict=True):
        one.write(file)
    return files


def written(folder, *records):
    """A new folder with a file for each; the runs."""
    folder.mkdir(parents=True)
    return read_runs(write_records(folder, *records))


def write_folder(folder, made, points, record=True):
    """A run's directory with this log, finished or not."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(made.config | {"versions": made.versions}))
    evaluations = [{"event": "evaluation"} | entry for entry in made.curve]
    start = {"event": "start", "step": 0, "hardware": made.hardware}
    lines = [json.dumps(entry) for entry in [start, *points, *evaluations]]
    (folder / "log.jsonl").write_text("\n".join(lines))
    if record:
        (folder / "record.json").write_text(json.dumps(asdict(made)))
