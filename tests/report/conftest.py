"""Made-up runs."""

import json

import pytest

from equipool.experiments.median import MedianTask
from equipool.report import read_runs
from equipool.training import Record, TrainingConfig
from equipool.training.config import chosen_config

HARDWARE = {"device": "cpu", "cpu": "abacus"}


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are drawn; none is rendered, which would take long."""
    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: figures.append(self))
    return figures


@pytest.fixture
def make(tmp_path):
    """Writes the directory of a run whose monitored metric took these values, one every 10 steps
    and every 10 seconds."""

    def write(name, values, *, seconds=10.0, **settings):
        task = MedianTask(**{"aggregation": "sum", "embedding": 8} | settings)
        config = chosen_config(task, TrainingConfig(steps=30))
        curve = [
            {"step": 10 * i, "seconds": seconds * i, "training_seconds": seconds * i,
             "metrics": {"mse": value}}
            for i, value in enumerate(values, 1)
        ]  # fmt: skip
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        record = Record(
            task="median", seed=task.seed, config=config, versions={}, hardware=HARDWARE, date="",
            steps=10 * len(values), complete=True, seconds=2 * seconds * len(values),
            training_seconds=seconds * len(values), num_parameters=1234, metrics={}, best=None,
            curve=curve, ran_on=[],
        )  # fmt: skip
        (folder / "config.json").write_text(json.dumps(config))
        record.write(folder / "record.json")
        return folder

    return write


@pytest.fixture
def runs(tmp_path):
    """All runs that were made."""
    return lambda: read_runs([tmp_path / "runs"])
