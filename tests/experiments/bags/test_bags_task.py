"""The task of bags: batches, loss, evaluation, training and the commands."""

import dataclasses
import json

import pytest
import torch
from torch.nn import functional
from typer.testing import CliRunner

import tiny_bags as tiny
from equipool import LearnedStart
from equipool.cli import make_app
from equipool.experiments.bags import BagsTask
from equipool.experiments.bags.data import load_bags
from equipool.training import Shard, TrainingConfig, evaluate, read_over_steps, train
from equipool.training.config import task_from_config

CPU = torch.device("cpu")
SMALL = BagsTask(
    "mean", dataset="musk1", width=8, embedding=4, head_width=8, batch_size=8, potential=(8, 8, 4),
    inner_steps=3,
)  # fmt: skip


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    """The tiny data set is what the task finds."""
    folder = tmp_path / "data"
    folder.mkdir()
    tiny.write_table(folder)
    monkeypatch.setenv("EQUIPOOL_DATA", str(folder))
    return folder


def test_an_epoch_has_every_training_bag_once():
    task = dataclasses.replace(SMALL)
    found = task.training_bags(CPU)
    drawn, wanted = [], found.split.train.tolist()
    for positions in task.batches(0, 20, CPU, Shard())["bags"]:
        drawn += positions[positions >= 0].tolist()
    assert sorted(drawn[: len(wanted)]) == wanted
    other = dataclasses.replace(task, seed=1).batches(0, 20, CPU, Shard())["bags"]
    assert not torch.equal(other, task.batches(0, 20, CPU, Shard())["bags"])


def test_steps_do_not_depend_on_those_requested_with_them():
    task = dataclasses.replace(SMALL)
    whole, some = task.batches(0, 9, CPU, Shard()), task.batches(4, 5, CPU, Shard())
    assert all(torch.equal(some[key], whole[key][4:]) for key in whole)


def test_the_loss_is_the_mean_over_the_bags_alone_and_over_shards():
    task = dataclasses.replace(SMALL)
    network = task.network().eval()
    bags, found = load_bags("musk1"), task.training_bags(CPU)
    batch = {key: values[0] for key, values in task.batches(0, 1, CPU, Shard()).items()}
    positions = batch["bags"][batch["bags"] >= 0]
    alone = torch.cat([network(x) for x in map(torch.from_numpy, found.bags.arrays(positions))])
    wanted = functional.binary_cross_entropy_with_logits(alone[:, 0], bags.labels[positions])
    torch.testing.assert_close(task.loss(network, batch).value, wanted)
    shards = [task.batches(0, 1, CPU, Shard(rank, 2)) for rank in range(2)]
    losses = [task.loss(network, {k: v[0] for k, v in own.items()}).value for own in shards]
    torch.testing.assert_close(sum(losses) / 2, wanted)


def test_evaluation_depends_on_neither_seed_nor_batch(monkeypatch):
    network = SMALL.network().eval()
    before = SMALL.evaluate(network, CPU)
    assert set(before) == {
        f"{part}_{name}" for part in ("valid", "test") for name in ("auc", "accuracy", "loss")
    }
    other = dataclasses.replace(SMALL, seed=9, batch_size=3)
    assert other.evaluate(network, CPU) == pytest.approx(before)
    monkeypatch.setattr("equipool.experiments.bags.task.BAGS_AT_ONCE", 2)
    assert SMALL.evaluate(network, CPU) == pytest.approx(before, rel=1e-5)


def test_no_test_bag_reaches_network_or_batches(data):
    """With other values in them, the scaled elements of the others are the same."""
    split = SMALL.training_bags(CPU).split
    content = tiny.columns()
    tested = torch.isin(torch.from_numpy(content["bag"]), split.test).numpy()
    changed = {"f0": content["f0"].copy()}
    changed["f0"][tested] = 1e6
    before = dataclasses.replace(SMALL).training_bags(CPU)
    (data / "other").mkdir()
    tiny.write_table(data / "other", **changed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EQUIPOOL_DATA", str(data / "other"))
        after = dataclasses.replace(SMALL).training_bags(CPU)
    for part in ("train", "valid"):
        pairs = (found.bags.arrays(getattr(found.split, part)) for found in (before, after))
        assert all((one == other).all() for one, other in zip(*pairs, strict=True))


def test_fields_reach_the_layer_and_survive_json():
    parts = {"start": "learned:value=1.0", "regularizer_weight": 0.3}
    task = dataclasses.replace(SMALL, aggregation="equilibrium", **parts)
    layer = task.network().aggregation
    assert (layer.num_steps, layer.in_channels, layer.out_channels) == (3, 8, 4)
    assert isinstance(layer.start, LearnedStart)
    saved = json.loads(json.dumps(dataclasses.asdict(task)))
    assert task_from_config({"task": "bags", "fields": saved}) == task


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("dataset", "wolf", "dataset is 'wolf', expected one of"),
        ("aggregation", "wolf", "aggregation is 'wolf', expected one of"),
        ("valid_share", 0.0, "valid_share is 0.0, expected between 0 and 1"),
        ("dropout", 1.0, "dropout is 1.0, expected at least 0 and less than 1"),
        ("width", 0, "width is 0, expected 1 or more"),
        ("fold", -1, "fold is -1, expected 0 or more"),
    ],
)
def test_fields_that_are_refused(field, value, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMALL, **{field: value})


def test_a_share_that_leaves_nothing_is_refused():
    with pytest.raises(ValueError, match="leaves a part of musk1 empty"):
        dataclasses.replace(SMALL, valid_share=0.001).network()


def test_training_learns_and_resumes_to_the_same_weights(tmp_path):
    task = dataclasses.replace(SMALL, aggregation="max")
    config = TrainingConfig(60, 0.02, evaluate_every=30, checkpoint_every=30, chunk=7)
    record = train(task, config, tmp_path / "whole", device="cpu", progress=False)
    assert record.metrics["test_auc"] > 0.9
    assert record.config["data"]["bags"] == {"train": 47, "valid": 7, "test": 6}
    short = dataclasses.replace(config, steps=30)
    train(task, short, tmp_path / "parts", device="cpu", progress=False)
    again = train(task, config, tmp_path / "parts", resume=True, device="cpu", progress=False)
    assert again.metrics == record.metrics
    assert evaluate(tmp_path / "parts", "last", device="cpu") == record.metrics


def command(*words):
    words = [str(word) for word in words]
    done = CliRunner().invoke(make_app(words), words)
    assert done.exit_code == 0, done.output
    return done.output


SIZES = ["--width", 8, "--embedding", 4, "--head-width", 8, "--potential", "8x8x4"]
RUN = ["--steps", 4, "--batch-size", 8, "--evaluate-every", 4, "--device", "cpu", "--threads", 1]


def test_the_commands(tmp_path):
    """Train with the recipe, evaluate over steps, sweep, and report."""
    out = tmp_path / "run"
    command("train", "bags", "--dataset", "musk1", "--recipe", "converging", *SIZES, *RUN,
            "--out", out, "--record", tmp_path / "record.json")  # fmt: skip
    fields = json.loads((tmp_path / "record.json").read_text())["config"]["fields"]
    assert (fields["inner_steps"], fields["differentiation.num_steps"]) == ("random", 5)
    shown = command("evaluate", out, "--over-steps", "1,20", "--starts", 2, "--device", "cpu")
    assert "test_auc" in shown
    assert "spread" in shown
    rows = read_over_steps(out / "over-steps-best.json")
    assert [row.num_steps for row in rows] == [1, 20]
    command("sweep", "bags", "--dataset", "musk1", "--aggregation", "mean,max", "--fold", "0,1",
            *SIZES, *RUN, "--out", tmp_path / "sweep")  # fmt: skip
    assert len(list((tmp_path / "sweep").glob("*/record.json"))) == 4
    page = tmp_path / "page.html"
    shown = command("report", out, tmp_path / "sweep", "--out", page)
    assert "test_auc" in shown
    assert "over inner steps" in page.read_text()
