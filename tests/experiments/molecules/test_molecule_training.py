"""Every readout and every local aggregation trains through the engine, and goes on when stopped."""

import dataclasses
import math
from functools import partial

import pytest
import torch

from equipool.experiments.data import using_data_folder
from equipool.experiments.molecules import MoleculeTask
from equipool.experiments.molecules.storage import Streamed
from equipool.training import Shard, TrainingConfig, evaluate, read_record, train
from finished_runs import assert_same_run
from generated_molecules import generated, serve

run = partial(train, device="cpu", progress=False)
TINY = MoleculeTask(
    "sum", batch_size=8, width=8, depth=2, dropout=0.2, potential=(12, 8, 4), inner_steps=3,
    local_steps=2,
)  # fmt: skip
TRAINING = TrainingConfig(
    steps=12, learning_rate=0.01, chunk=5, log_every=6, evaluate_every=6, checkpoint_every=5,
    aux_weight=0.0,
)  # fmt: skip
CASES = {
    "set-transformer": {"aggregation": "set-transformer"},
    "equilibrium": {"aggregation": "equilibrium", "atom_dropout": 0.1, "potential_dropout": 0.2},
    "all, gcn": {
        "aggregation": "equilibrium", "local_aggregation": "equilibrium", "convolution": "gcn",
        "virtual_node": True,
        "solver": "nesterov:max_step=0.5,curvature_safe=true",
    },
}  # fmt: skip


@pytest.fixture
def served(tmp_path, monkeypatch):
    serve(generated(60), monkeypatch)
    with using_data_folder(tmp_path / "data"):
        yield


@pytest.mark.parametrize("case", CASES)
def test_it_trains_and_goes_on(case, tmp_path, served):
    task = dataclasses.replace(TINY, **CASES[case])
    whole = run(task, TRAINING, tmp_path / "whole")
    assert whole.complete
    assert whole.skipped == 0
    assert all(math.isfinite(value) for value in whole.metrics.values())
    pieces = tmp_path / "pieces"
    for _ in range(2):
        run(task, TRAINING, pieces, resume=True, stop_after=0)
    run(task, TRAINING, pieces, resume=True)
    assert read_record(pieces / "record.json").pieces > 1
    assert_same_run(tmp_path / "whole", pieces)


def test_it_learns(tmp_path, monkeypatch):
    serve(generated(400, labels=1, missing=0.1), monkeypatch)
    sizes = {"batch_size": 24, "width": 16, "potential": (24, 16, 8)}
    task = dataclasses.replace(TINY, aggregation="equilibrium", atom_dropout=0.1, **sizes)
    training = dataclasses.replace(
        TRAINING, steps=200, schedule="cosine", evaluate_every=200, checkpoint_every=None,
        log_every=100,
    )  # fmt: skip
    with using_data_folder(tmp_path / "data"):
        found = run(task, training, tmp_path / "run")
    assert found.metrics["test_roc_auc"] > 0.85  # four seeds had 0.89 to 0.96, guessing has 0.5


def test_numbers_are_learned(tmp_path, monkeypatch):
    serve(generated(400, labels=2, kind="regression", missing=0.1), monkeypatch)
    task = dataclasses.replace(TINY, batch_size=24, width=16)
    training = dataclasses.replace(TRAINING, steps=120, evaluate_every=120, log_every=60)
    with using_data_folder(tmp_path / "data"):
        found = run(task, training, tmp_path / "run")
    assert found.metrics["test_mae"] < 0.6  # guessing the mean is about 0.8


def test_streamed_it_is_the_same_run(tmp_path, served, monkeypatch):
    task = dataclasses.replace(TINY, **CASES["equilibrium"])
    run(task, TRAINING, tmp_path / "resident")
    monkeypatch.setattr("equipool.experiments.molecules.dataset.choose_storage", Streamed)
    with using_data_folder(tmp_path / "elsewhere"):
        sent = task.batches(0, 1, torch.device("cpu"), Shard())
        assert "atoms" in sent
        run(task, TRAINING, tmp_path / "streamed")
    assert_same_run(tmp_path / "resident", tmp_path / "streamed")


def test_a_run_is_evaluated_again(tmp_path, served):
    done = run(TINY, TRAINING, tmp_path / "run")
    found = evaluate(tmp_path / "run", "last", device="cpu")
    assert found == pytest.approx(done.metrics)
    assert done.best["metrics"]["valid_score"] == max(
        entry["metrics"]["valid_score"] for entry in done.curve
    )
    assert "test_score" in done.best["metrics"]


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true"])
def test_other_precisions(precision, tmp_path, served):
    task = dataclasses.replace(TINY, **CASES["all, gcn"])
    training = dataclasses.replace(TRAINING, precision=precision)
    found = run(task, training, tmp_path / "run")
    assert found.skipped == 0
    assert math.isfinite(found.metrics["valid_loss"])
