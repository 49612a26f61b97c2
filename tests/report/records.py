"""Records of runs that never were."""

import json
from dataclasses import asdict, replace

from equipool.experiments.registry import MedianTask
from equipool.report import read_runs
from equipool.training import Record, TrainingConfig
from equipool.training.config import chosen_config

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
    made = Record(
        task="median",
        seed=seed,
        config=chosen_config(task, TrainingConfig(steps=10 * len(values))),
        versions={"torch": "2.13.0"},
        hardware=HARDWARE,
        date="2026-01-01T00:00:00+00:00",
        steps=10 * len(values),
        complete=True,
        pieces=1,
        together=1,
        seconds=curve[-1]["seconds"],
        training_seconds=curve[-1]["training_seconds"],
        num_parameters=1234,
        metrics=curve[-1]["metrics"],
        best=None,
        curve=curve,
        spikes=0,
        skipped=0,
    )
    return replace(made, **changed)


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
