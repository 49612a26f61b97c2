"""The task on molecules: its fields, its batches, its loss, its evaluation."""

import dataclasses
import json
import math

import pytest
import torch

from equipool import EquilibriumAggregation
from equipool.experiments.data import using_data_folder
from equipool.experiments.molecules import MoleculeTask, predict_molecules
from equipool.experiments.molecules.data import CsvSource, RandomSplit, ScaffoldSplit
from equipool.experiments.molecules.labels import mean_over_labels, roc_auc
from equipool.training.config import TrainingConfig, run_config, task_from_config
from equipool.training.task import Shard
from generated_molecules import generated, serve

CPU = torch.device("cpu")
TINY = MoleculeTask(
    "sum", batch_size=4, width=6, depth=2, potential=(8, 6, 3), inner_steps=2, local_steps=2
)


@pytest.fixture
def molecules(tmp_path, monkeypatch):
    found = generated(60)
    serve(found, monkeypatch)
    with using_data_folder(tmp_path):
        yield found


def batch(task, step=0, shard=None):
    found = task.batches(step, 1, CPU, shard or Shard())
    return {name: values[0] for name, values in found.items()}


def network(task):
    torch.manual_seed(0)
    return task.network()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("depth", 0, "1 or more"),
        ("width", 0, "1 or more"),
        ("inner_steps", -1, "0 or more"),
        ("local_aux_weight", -1.0, "0 or more"),
        ("dropout", 1.0, "at least 0 and less than 1"),
        ("train_limit", 0, "1 or more, or None"),
        ("convolution", "gat", "one of"),
        ("aggregation", "median", "one of"),
        ("local_aggregation", "mean", "one of"),
        ("dataset", "zinc", "one of"),
        ("kind", "ranking", "one of"),
        ("labels", "a,b", "None without csv"),
        ("smiles", "smiles", "None without csv"),
        ("split", "scaffold", "None without csv"),
        ("kind", "regression", "None without csv"),
    ],
)
def test_what_cannot_be_is_refused(name, value, expected):
    with pytest.raises(ValueError, match=f"{name} is {value!r}, expected {expected}"):
        MoleculeTask(**{name: value})


def test_its_fields_survive_json(molecules):
    config = run_config(TINY, TrainingConfig(steps=1))
    assert task_from_config(json.loads(json.dumps(config))) == TINY


def test_the_paper():
    task = MoleculeTask.paper()
    assert dataclasses.replace(task, dataset="ogbg-molpcba") == task
    assert (task.dataset, task.batch_size) == ("molpcba", 8)
    assert (task.depth, task.width, task.dropout) == (5, 300, 0.5)
    assert (task.potential, task.inner_steps, task.local_steps) == ((600, 300, 32), 15, 15)
    assert (task.readout_aux_weight, task.local_aux_weight) == (1.0, 1e-4)


def test_a_table_is_a_source(tmp_path, monkeypatch):
    assert TINY.source() == "molhiv"
    monkeypatch.chdir(tmp_path)
    table = str(tmp_path / "a.csv")
    own = dataclasses.replace(TINY, csv="a.csv", smiles="S", labels="x, y", kind="regression")
    assert own.source() == CsvSource(table, "S", ("x", "y"), ScaffoldSplit(), "regression")
    other = dataclasses.replace(own, labels=None, smiles=None, split="random", kind=None)
    assert other.source() == CsvSource(table, "smiles", None, RandomSplit())
    own = MoleculeTask(csv="a.csv", dataset="molpcba")  # as of a preset
    assert own == MoleculeTask(csv=str(tmp_path / "a.csv"))
    assert own.dataset is None
    saved = dataclasses.asdict(own)
    monkeypatch.chdir(tmp_path.parent)
    assert MoleculeTask(**saved) == own
    assert own.source().location == tmp_path / "a.csv"


def test_a_virtual_node_needs_two_molecules(molecules):
    with pytest.raises(ValueError, match="batch_size is 1, expected 2 or more with a virtual node"):
        MoleculeTask(virtual_node=True, batch_size=1)
    task = dataclasses.replace(TINY, virtual_node=True)
    batch(task, shard=Shard(0, 2))
    with pytest.raises(ValueError, match="batch_size is 4 in 4 processes, expected 2 or more"):
        batch(task, shard=Shard(0, 4))


def test_what_is_remembered_of_the_data(molecules):
    found = run_config(TINY, TrainingConfig(steps=1))["data"]
    fingerprint = found.pop("fingerprint")
    assert found == {
        "labels": ["label 0", "label 1"],
        "kind": "classification",
        "molecules": {"train": 36, "valid": 12, "test": 12},
    }
    assert len(fingerprint) == 16


def test_molecules_that_rdkit_refuses_are_treated_as_in_the_data():
    for dataset in ("molhiv", "molpcba"):
        assert MoleculeTask(dataset=dataset).keeps_unsanitised()
    for task in (MoleculeTask(dataset="tox21"), MoleculeTask(csv="a.csv")):
        assert not task.keeps_unsanitised()


def test_fields_reach_the_network(molecules):
    task = dataclasses.replace(
        TINY, aggregation="equilibrium", local_aggregation="equilibrium", convolution="gcn",
        inner_steps=7, local_steps=3, virtual_node=True,
        solver="nesterov:momentum=0.3,max_step=0.5,curvature_safe=true",
        dropout=0.1, readout_dropout=0.2,
        atom_dropout=0.3, potential_dropout=0.4,
    )  # fmt: skip
    found = network(task)
    layers = [m for m in found.modules() if isinstance(m, EquilibriumAggregation)]
    assert [layer.num_steps for layer in layers] == [3, 3, 7]
    for layer in layers:
        assert layer.solver.momentum.item() == pytest.approx(0.3)
        assert layer.solver.max_step == 0.5
        assert layer.solver.curvature_safe
        assert layer.potential.hidden == (8, 6, 3)
        assert layer.potential.dropout == 0.4
    other = network(dataclasses.replace(task, local_potential=(5, 4)))
    layers = [m for m in other.modules() if isinstance(m, EquilibriumAggregation)]
    assert [layer.potential.hidden for layer in layers] == [(5, 4), (5, 4), (8, 6, 3)]
    assert type(found.convolutions[0]).__name__ == "GCNConvolution"
    assert found.virtual_node is not None
    assert (found.dropout.p, found.readout_dropout.p, found.atom_dropout) == (0.1, 0.2, 0.3)
    assert found.head.out_features == molecules.num_labels


def test_batches_are_a_function_of_seed_and_step(molecules):
    many = TINY.batches(0, 40, CPU, Shard())
    some = TINY.batches(17, 5, CPU, Shard())
    for name, values in some.items():
        assert torch.equal(values, many[name][17:22])
    other = dataclasses.replace(TINY, seed=1).batches(0, 40, CPU, Shard())
    assert not torch.equal(other["molecules"], many["molecules"])


def test_only_training_molecules_are_trained_on(molecules):
    found = TINY.batches(0, 40, CPU, Shard())["molecules"]
    assert set(found[found >= 0].tolist()) == set(molecules.split["train"].tolist())
    limited = dataclasses.replace(TINY, train_limit=5)
    few = limited.batches(0, 40, CPU, Shard())["molecules"]
    assert len(set(few[few >= 0].tolist())) == 5
    assert set(few[few >= 0].tolist()) < set(molecules.split["train"].tolist())


def test_the_loss_is_the_mean_over_labels_that_are_there(molecules):
    model = network(TINY).eval()
    given = batch(TINY)
    positions = given["molecules"][given["molecules"] >= 0]
    assert molecules.labels[positions].isnan().any()
    prediction = predict_molecules(model, molecules.select(positions), CPU)
    labels = molecules.labels[positions]
    known = ~labels.isnan()
    assert given["present"] == known.sum()
    entropy = torch.nn.functional.binary_cross_entropy_with_logits
    expected = entropy(prediction[known], labels[known])
    found = TINY.loss(model, given)
    torch.testing.assert_close(found.value, expected)
    torch.testing.assert_close(found.metrics["label_loss"], expected)
    assert list(found.metrics) == ["label_loss"]


def test_auxiliary_losses_have_weights_of_their_own(molecules):
    both = dataclasses.replace(
        TINY, aggregation="equilibrium", local_aggregation="equilibrium", dropout=0.0,
        readout_aux_weight=0.0, local_aux_weight=0.0,
    )  # fmt: skip
    model, given = network(both).eval(), batch(both)
    plain = both.loss(model, given)
    assert plain.value == plain.metrics["label_loss"]
    for name in ("readout_aux", "local_aux"):
        aux = plain.metrics[f"{name}_loss"]
        assert aux > 0
        weight = 5 / aux.item()
        weighed = dataclasses.replace(both, **{f"{name}_weight": weight}).loss(model, given)
        assert (weighed.value - plain.value).item() == pytest.approx(5, rel=1e-4)
    assert plain.metrics["readout_aux_loss"] != plain.metrics["local_aux_loss"]


@pytest.mark.parametrize(("few", "world"), [(False, 2), (True, 4)])
def test_parts_of_a_batch_have_the_loss_of_the_whole(tmp_path, monkeypatch, few, world):
    """Also if there are fewer labels than parts."""
    found = generated(60)
    if few:
        found.labels[:] = math.nan
        found.labels[::6, 0] = 1
    serve(found, monkeypatch)
    numbers = set()
    with using_data_folder(tmp_path):
        model = network(TINY).eval()
        for step in range(8):
            joined = batch(TINY, step)
            whole = TINY.loss(model, joined).value
            shards = [Shard(rank, world) for rank in range(world)]
            parts = [TINY.loss(model, batch(TINY, step, shard)).value for shard in shards]
            torch.testing.assert_close(sum(parts) / world, whole)
            positions = joined["molecules"][joined["molecules"] >= 0]
            numbers.add(int((~found.labels[positions].isnan()).sum()))
    assert not few or {0, 1} < numbers


def test_training_without_a_label_is_refused(tmp_path, monkeypatch):
    found = generated(40)
    found.labels[found.split["train"]] = math.nan
    serve(found, monkeypatch)
    expected = "none of the 24 training molecules has a label"
    with using_data_folder(tmp_path), pytest.raises(ValueError, match=expected):
        TINY.facts()


def test_what_a_captured_step_reads_stays_where_it_is(tmp_path, monkeypatch):
    serve(generated(20, kind="regression"), monkeypatch)
    with using_data_folder(tmp_path):
        task = dataclasses.replace(TINY, seed=1000)
        deviation = task.training_data().labels(CPU).deviation
        arrays = task.data().storage(CPU).arrays
        for seed in range(100):
            dataclasses.replace(TINY, seed=seed).training_data().labels(CPU)
        for other in range(20):
            with using_data_folder(tmp_path / str(other)):
                task.data()
        task.facts()
        assert task.training_data().labels(CPU).deviation is deviation
        assert task.data().storage(CPU).arrays is arrays


def test_long_molecules_are_predicted_a_few_at_a_time(molecules, monkeypatch):
    model = network(TINY).eval()
    expected = predict_molecules(model, molecules, CPU)
    longest = int(molecules.num_atoms.max())
    monkeypatch.setattr("equipool.experiments.molecules.storage.MAX_ATOMS", 7 * longest + 1)
    sizes = []
    model.register_forward_pre_hook(lambda _, given: sizes.append(given[0].num_molecules))
    torch.testing.assert_close(predict_molecules(model, molecules, CPU), expected)
    assert set(sizes) == {7}
    monkeypatch.setattr("equipool.experiments.molecules.storage.MAX_ATOMS", 1)
    torch.testing.assert_close(predict_molecules(model, molecules, CPU), expected)


def test_every_molecule_is_evaluated_once(molecules, monkeypatch):
    monkeypatch.setattr("equipool.experiments.molecules.storage.MAX_MOLECULES", 5)
    monkeypatch.setattr("equipool.experiments.molecules.storage.BATCHES_SENT", 2)
    model = network(TINY).eval()
    sizes = []
    model.register_forward_pre_hook(
        lambda _, given: sizes.append((given[0].atoms.shape, int(given[0].molecule_mask.sum())))
    )
    metrics = TINY.evaluate(model, CPU)
    parts = {part: molecules.split[part] for part in ("valid", "test")}
    assert sum(number for _, number in sizes) == sum(len(part) for part in parts.values())
    assert len({shape for shape, _ in sizes}) == 1
    assert len(sizes) > 4
    for part, positions in parts.items():
        alone = torch.cat([predict_molecules(model, molecules.one(i), CPU) for i in positions])
        labels = molecules.labels[positions]
        assert metrics[f"{part}_roc_auc"] == pytest.approx(mean_over_labels(roc_auc, alone, labels))
        assert metrics[f"{part}_score"] == metrics[f"{part}_roc_auc"]
        known = ~labels.isnan()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(alone[known], labels[known])
        assert metrics[f"{part}_loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert TINY.monitor in metrics


def test_the_evaluation_does_not_depend_on_the_seed_and_needs_no_test_part(tmp_path, monkeypatch):
    found = generated(40)
    found.split["test"] = found.split["test"][:0]
    serve(found, monkeypatch)
    with using_data_folder(tmp_path):
        model = network(TINY).eval()
        metrics = TINY.evaluate(model, CPU)
        again = dataclasses.replace(TINY, seed=5, batch_size=2).evaluate(model, CPU)
    assert again == pytest.approx(metrics, rel=0, abs=0, nan_ok=True)
    assert math.isnan(metrics["test_score"])
    assert math.isfinite(metrics["valid_loss"])


def test_numbers_are_predicted_in_their_units(tmp_path, monkeypatch):
    found = generated(60, kind="regression")
    serve(found, monkeypatch)
    with using_data_folder(tmp_path):
        model = network(TINY).eval()
        metrics = TINY.evaluate(model, CPU)
        given = batch(TINY)
        loss = TINY.loss(model, given).value
    training = found.labels[found.split["train"]]
    mean = torch.stack([column[~column.isnan()].mean() for column in training.T])
    torch.testing.assert_close(model.units.mean, mean)
    prediction = predict_molecules(model, found, CPU)
    assert 30 < prediction.mean() < 75  # the labels lie between 50 and 60
    assert loss < 10
    assert metrics["valid_score"] == -metrics["valid_mae"]
    assert {f"test_mae_{name}" for name in found.label_names} < metrics.keys()
