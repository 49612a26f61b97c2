"""The task on molecules: its fields, its batches, its loss, its training."""

import dataclasses
import json
import math
from functools import partial

import pytest
import torch

from equipool import EquilibriumAggregation
from equipool.experiments.molecules.sources import SmilesTable
from equipool.experiments.molecules.task import MoleculeTask, predict
from equipool.training import Shard, TrainingConfig, read_record, train
from equipool.training.config import run_config, task_from_config
from finished_runs import assert_same_run
from generated_molecules import generated, serve

CPU = torch.device("cpu")
run = partial(train, device="cpu", progress=False)
TRAINING = TrainingConfig(
    steps=12, learning_rate=0.01, chunk=5, log_every=6, evaluate_every=6, checkpoint_every=5,
    aux_weight=0.0,
)  # fmt: skip


@pytest.fixture
def molecules(monkeypatch):
    found = generated(60)
    serve(found, monkeypatch)
    return found


def tiny(**fields):
    small = {"batch_size": 4, "width": 6, "depth": 2, "potential": (8, 6, 3), "inner_steps": 2}
    return MoleculeTask(**({"aggregation": "sum", "local_steps": 2} | small | fields))


BOTH = {"aggregation": "equilibrium", "local_aggregation": "equilibrium"}


def batch(task, step=0, shard=None):
    found = task.batches(step, 1, CPU, shard or Shard())
    return {name: values[0] for name, values in found.items()}


def network(task):
    torch.manual_seed(0)
    return task.network()


def test_its_fields_survive_json(molecules):
    config = run_config(tiny(**BOTH), TRAINING)
    assert task_from_config(json.loads(json.dumps(config))) == tiny(**BOTH)
    parts = {"train": 36, "valid": 12, "test": 12}
    expected = {"labels": ["label 0", "label 1"], "kind": "classification", "molecules": parts}
    assert config["data"] == expected | {"fingerprint": "generated"}


def test_a_table_is_a_source(tmp_path, monkeypatch):
    assert MoleculeTask().source() == "molhiv"
    monkeypatch.chdir(tmp_path)
    path = str(tmp_path / "a.csv")
    own = MoleculeTask(csv="a.csv", dataset="molpcba", smiles="S", labels="x, y", kind="regression")
    assert own.source() == SmilesTable(path, "S", ("x", "y"), "scaffold", "regression")
    monkeypatch.chdir(tmp_path.parent)
    assert MoleculeTask(**dataclasses.asdict(own)) == own
    assert MoleculeTask(csv=path).source() == SmilesTable(path)


def test_fields_reach_the_network(molecules):
    task = tiny(
        **BOTH, local_steps=3, dropout=0.1, readout_dropout=0.2, atom_dropout=0.3,
        local_potential=(5, 4),
    )  # fmt: skip
    found = network(task)
    layers = [m for m in found.modules() if isinstance(m, EquilibriumAggregation)]
    assert [layer.steps.max_steps for layer in layers] == [3, 3, 2]
    assert [layer.potential.hidden for layer in layers] == [(5, 4), (5, 4), (8, 6, 3)]
    assert (found.dropout.p, found.readout_dropout.p, found.atom_dropout) == (0.1, 0.2, 0.3)


def test_each_epoch_has_every_training_molecule_once(molecules):
    train = molecules.positions("train").tolist()
    found = tiny().batches(0, 18, CPU, Shard())["molecules"].flatten()
    first, second = found.split(36)
    assert sorted(first.tolist()) == sorted(second.tolist()) == train
    assert not torch.equal(first, second)


def test_the_loss_is_the_mean_over_labels_that_are_there(molecules):
    task = tiny()
    model, given = network(task).eval(), batch(task)
    labels = molecules.labels[given["molecules"]]
    known = ~labels.isnan()
    assert not known.all()
    prediction = predict(model, molecules, given["molecules"])
    entropy = torch.nn.functional.binary_cross_entropy_with_logits
    torch.testing.assert_close(
        task.loss(model, given).value, entropy(prediction[known], labels[known])
    )


def test_auxiliary_losses_have_weights_of_their_own(molecules):
    task = tiny(**BOTH, dropout=0.0, readout_aux_weight=0.0, local_aux_weight=0.0)
    model, given = network(task).eval(), batch(task)
    plain = task.loss(model, given)
    assert plain.value == plain.metrics["label_loss"]
    for name in ("readout_aux", "local_aux"):
        weight = 5 / plain.metrics[f"{name}_loss"].item()
        weighed = dataclasses.replace(task, **{f"{name}_weight": weight}).loss(model, given)
        assert (weighed.value - plain.value).item() == pytest.approx(5, rel=1e-4)


@pytest.mark.parametrize("few", [False, True])
def test_parts_of_a_batch_have_the_loss_of_the_whole(monkeypatch, few):
    """Also if there are fewer labels than parts."""
    found = generated(60)
    if few:
        found.labels[:] = math.nan
        found.labels[::6, 0] = 1
    serve(found, monkeypatch)
    task = tiny(batch_size=8)
    model = network(task).eval()
    for step in range(4):
        whole = task.loss(model, batch(task, step)).value
        parts = [task.loss(model, batch(task, step, Shard(i, 4))).value for i in range(4)]
        torch.testing.assert_close(sum(parts) / 4, whole)


def test_labels_without_a_score_are_named(monkeypatch, capsys):
    found = generated(20, labels=3)
    found.labels[found.positions("valid"), 1] = 1
    serve(found, monkeypatch)
    assert tiny().facts()["kind"] == "classification"
    assert "The valid score ignores" in (printed := capsys.readouterr().err)
    assert "'label 1'" in printed
    found.labels[:] = math.nan
    with pytest.raises(ValueError, match="none of the 12 training molecules has a label"):
        tiny().facts()


@pytest.mark.parametrize(
    "fields",
    [{"aggregation": "equilibrium", "atom_dropout": 0.1, "potential_dropout": 0.2},
     {"aggregation": "location", "local_aggregation": "location"},
     BOTH | {"convolution": "gcn", "dropout": 0.2}],
)  # fmt: skip
def test_it_trains_and_resumes(tmp_path, molecules, fields):
    task = tiny(**fields)
    whole = run(task, TRAINING, tmp_path / "whole")
    assert whole.complete
    assert all(math.isfinite(value) for value in whole.metrics.values())
    for stop in ({"stop_after": 0}, {}):
        run(task, TRAINING, tmp_path / "pieces", resume=True, **stop)
    assert len(read_record(tmp_path / "pieces" / "record.json").ran_on) > 1
    assert_same_run(tmp_path / "whole", tmp_path / "pieces")


@pytest.mark.parametrize(
    ("kind", "metric", "least"),
    [("classification", "test_roc_auc", 0.8), ("regression", "test_score", -0.65)],
)
def test_it_learns(tmp_path, monkeypatch, kind, metric, least):
    """Guessing has 0.5, and the mean about -0.8."""
    serve(generated(300, labels=1, kind=kind, missing=0.1), monkeypatch)
    training = dataclasses.replace(
        TRAINING, steps=120, evaluate_every=120, log_every=60, checkpoint_every=None
    )
    task = tiny(batch_size=24, width=16, aggregation="mean", dropout=0.0)
    assert run(task, training, tmp_path / "run").metrics[metric] > least
