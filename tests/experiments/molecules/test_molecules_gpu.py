"""The task on molecules on a GPU: captured steps, streamed data, nothing that waits."""

import dataclasses
import math
from functools import partial

import pytest
import torch

from equipool.experiments.data import using_data_folder
from equipool.experiments.molecules import MoleculeTask
from equipool.experiments.molecules.storage import Resident, Streamed
from equipool.training import TrainingConfig, read_log, train, train_together
from equipool.training.step import make_network
from finished_runs import last_tensors, numbers
from generated_molecules import generated, serve
from tasks_on_gpu import CUDA, assert_nothing_waits, first_batch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

run = partial(train, device="cuda", progress=False)
SMALL = MoleculeTask(
    "sum", batch_size=16, width=32, depth=3, dropout=0.2, potential=(64, 32, 8), inner_steps=4,
    local_steps=3,
)  # fmt: skip
# Sum, attention and PNA add up atoms in an order of the device's own. A bias before a batch
# normalisation changes nothing: its gradient is rounding alone, of which Adam would make full
# steps. With this epsilon it does not.
TRAINING = TrainingConfig(
    steps=30, learning_rate=0.003, epsilon=1e-3, chunk=10, log_every=10, evaluate_every=15,
    checkpoint_every=None, aux_weight=0.0,
)  # fmt: skip
CASES = {
    "sum": {},
    "gcn": {"aggregation": "mean", "convolution": "gcn"},
    "attention, virtual node": {"aggregation": "attention", "virtual_node": True},
    "pna": {"aggregation": "pna"},
    "set-transformer": {"aggregation": "set-transformer"},
    "equilibrium": {"aggregation": "equilibrium", "atom_dropout": 0.1},
    "both": {"aggregation": "equilibrium", "local_aggregation": "equilibrium"},
    "both, restrained": {
        "aggregation": "equilibrium", "local_aggregation": "equilibrium", "convolution": "gcn",
        "virtual_node": True, "potential_dropout": 0.2,
        "solver": "nesterov:max_step=0.5,curvature_safe=true",
    },
}  # fmt: skip
TRACKED = ("running_mean", "running_var", "num_batches_tracked")
each_case = pytest.mark.parametrize("case", CASES)


@pytest.fixture(autouse=True)
def served(tmp_path, monkeypatch):
    serve(generated(200), monkeypatch)
    with using_data_folder(tmp_path / "data"):
        yield


def task_of(case):
    return dataclasses.replace(SMALL, **CASES[case])


def network_state(folder):
    """The network's state at the end of a run."""
    found = last_tensors(folder)
    return {name.removeprefix("model/"): found[name] for name in found if name.startswith("model/")}


def vectors(state):
    """The weights of a network as one vector, and what its normalisations track as another."""
    tracked = {name for name in state if name.endswith(TRACKED)}
    return [
        torch.cat([state[name].double().flatten() for name in sorted(names)])
        for names in (state.keys() - tracked, tracked)
    ]


@each_case
def test_the_loss_is_that_of_the_cpu(case):
    task = task_of(case)
    torch.manual_seed(0)
    network = task.network().eval()
    here = task.loss(network, first_batch(task, torch.device("cpu")))
    there = task.loss(network.to(CUDA), first_batch(task, CUDA))
    torch.testing.assert_close(there.value.cpu(), here.value, rtol=1e-3, atol=1e-4)


@each_case
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_nothing_waits_for_the_device(case):
    assert_nothing_waits(task_of(case))


@each_case
@pytest.mark.parametrize(("precision", "tolerance"), [("32-true", 0.05), ("64-true", 1e-6)])
def test_a_captured_step_is_the_step(case, precision, tolerance, tmp_path):
    """They end at the same place, beside the way that they have come, by steps of the same losses.

    Steps of two chunks, with an evaluation between them, and no more: rounding grows from one to
    the next. In float32 it also decides which side of zero the argument of a relu is on, now and
    then, and that is seen in the third digit.
    """
    task = task_of(case)
    training = dataclasses.replace(
        TRAINING, steps=6, chunk=4, log_every=2, evaluate_every=4, precision=precision
    )
    folders = [tmp_path / "captured", tmp_path / "eager"]
    for folder, capture in zip(folders, (True, False), strict=True):
        run(task, dataclasses.replace(training, capture=capture), folder)
    start = vectors(make_network(task).state_dict())
    ends = (vectors(network_state(folder)) for folder in folders)
    for before, captured, eager in zip(start, *ends, strict=True):
        assert (captured - eager).norm() <= tolerance * (eager - before).norm()
    for one, other in zip(*map(numbers, folders), strict=True):
        assert one["step"] == other["step"]
        for name in {"loss", "loss_max", "gradient_norm"} & one.keys():
            assert one[name] == pytest.approx(other[name], rel=tolerance)


@pytest.mark.parametrize("precision", ["tf32", "bf16-mixed"])
@pytest.mark.parametrize("case", ["sum", "equilibrium", "both"])
def test_other_precisions_are_captured(case, precision, tmp_path):
    training = dataclasses.replace(TRAINING, precision=precision, capture=True)
    found = run(task_of(case), training, tmp_path / "run")
    assert found.skipped == 0
    assert math.isfinite(found.metrics["valid_loss"])


def test_it_is_captured_by_itself(tmp_path):
    run(task_of("both"), TRAINING, tmp_path / "run")
    log = read_log(tmp_path / "run" / "log.jsonl")
    assert not [entry for entry in log if entry.get("event") == "not captured"]


@pytest.mark.parametrize("convolution", ["gin", "gcn"])
def test_the_networks_numbers_are_the_same_every_time(convolution, tmp_path):
    """Sums over neighbours are taken in one order. The readout is not in question here: attention
    and sum add up atoms in an order of the device's own."""
    task = dataclasses.replace(SMALL, convolution=convolution, virtual_node=True)
    network = task.network().to(CUDA)
    batch = first_batch(task, CUDA)
    found = task.data().storage(batch["present"].device).batch(batch, task.training_data().capacity)
    grads = []
    for _ in range(3):
        torch.manual_seed(0)
        atoms = network.embed(found.molecules)
        grads.append(torch.autograd.grad(atoms.square().sum(), network.convolutions.parameters()))
    for other in grads[1:]:
        assert all(torch.equal(a, b) for a, b in zip(grads[0], other, strict=True))


def test_streamed_is_resident():
    arrays = SMALL.data().arrays
    capacity = SMALL.training_data().capacity
    steps = torch.stack([torch.arange(16), torch.cat([torch.arange(40, 50), torch.full((6,), -1)])])
    found = []
    for kind in (Resident, Streamed):
        stored = kind(arrays, CUDA)
        pieces = stored.send(steps, capacity)
        assert all(values.is_cuda for values in pieces.values())
        found.append(
            [
                stored.batch({name: values[i] for name, values in pieces.items()}, capacity)
                for i in range(2)
            ]
        )
    for one, other in zip(*found, strict=True):
        tensors = [(vars(some.molecules), some.labels) for some in (one, other)]
        torch.testing.assert_close(*tensors, rtol=0, atol=0, equal_nan=True)


def test_a_streamed_run_is_the_resident_one(tmp_path, monkeypatch):
    training = dataclasses.replace(TRAINING, steps=15)
    run(task_of("both"), training, tmp_path / "resident")
    monkeypatch.setattr("equipool.experiments.molecules.dataset.choose_storage", Streamed)
    with using_data_folder(tmp_path / "elsewhere"):
        run(task_of("both"), training, tmp_path / "streamed")
    for one, other in zip(
        numbers(tmp_path / "resident"), numbers(tmp_path / "streamed"), strict=True
    ):
        assert one["metrics"] == pytest.approx(other["metrics"], rel=0.02, abs=0.01)


def test_resumed_it_goes_on(tmp_path):
    """An epoch and more through the engine, in pieces."""
    training = dataclasses.replace(TRAINING, checkpoint_every=10)
    task = task_of("equilibrium")
    run(task, training, tmp_path / "whole")
    for _ in range(2):
        run(task, training, tmp_path / "pieces", resume=True, stop_after=0)
    run(task, training, tmp_path / "pieces", resume=True)
    for one, other in zip(numbers(tmp_path / "whole"), numbers(tmp_path / "pieces"), strict=True):
        assert one["step"] == other["step"]
        assert one["metrics"] == pytest.approx(other["metrics"], rel=0.02, abs=0.01)


def test_several_runs_share_the_data(tmp_path):
    tasks = [dataclasses.replace(task_of("equilibrium"), seed=seed) for seed in range(3)]
    plans = [(task, TRAINING, tmp_path / f"{task.seed}") for task in tasks]
    records = train_together(plans, device="cuda", progress=False)
    assert all(record.complete for record in records)
    alone = run(tasks[1], TRAINING, tmp_path / "alone")
    assert records[1].metrics == pytest.approx(alone.metrics, rel=0.02, abs=0.01)
