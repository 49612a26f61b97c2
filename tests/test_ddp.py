"""Two processes that share a batch train as one process that has all of it."""

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import equipool
from cases import flatten, make_sets
from equipool import (
    ConvexPotential,
    EquilibriumAggregation,
    LearnedStart,
    Nesterov,
    RandomSteps,
    SquaredNorm,
    Unrolled,
)
from equipool.differentiation import Implicit, Truncated
from seeds import shift_seeds

pytestmark = pytest.mark.processes

SECONDS = 120
SHARDS = ((3, 1, 4), (2, 6, 1))  # as many sets in each, so that the mean of means is the mean

# How to differentiate, weight of the auxiliary loss, and the parts that learn nothing that way.
METHODS = {
    "unrolled": (Unrolled(), 0.1, ()),
    "one step": (Truncated(1), 0.0, ("pool.start",)),
    "implicit": (Implicit(), 0.0, ("pool.start", "pool.solver")),
}


class Model(nn.Module):
    def __init__(self, differentiation):
        super().__init__()
        torch.manual_seed(2)
        self.pool = EquilibriumAggregation(
            3, 4, potential=ConvexPotential(3, 4, (5, 3)), regularizer=SquaredNorm(0.3),
            solver=Nesterov(0.03, 0.8), steps=300, start=LearnedStart(4, 0.1),
            differentiation=differentiation,
        ).double()  # fmt: skip
        self.head = nn.Linear(4, 1).double()

    def forward(self, x, index):
        return self.head(self.pool(x, index))


def train(model, sets, aux_weight, num_steps=2):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x, index = flatten(sets)
    for _ in range(num_steps):
        optimizer.zero_grad()
        with equipool.record(diagnostics=False) as solutions:
            loss = (model(x, index) - 1).square().mean()
        # Without a weight, nothing of it: a zero would reach every parameter as well.
        (loss + aux_weight * solutions.aux_loss if aux_weight else loss).backward()
        optimizer.step()


def draw(layer, number):
    return [layer.steps.budget(training=True).num_steps for _ in range(number)]


def shard(rank):
    return make_sets(SHARDS[rank], seed=10 + rank)


def work(rank, folder):
    shift_seeds()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=len(SHARDS),
        timeout=timedelta(seconds=SECONDS),
    )  # fmt: skip
    torch.manual_seed(rank)
    one, other = (EquilibriumAggregation(3, 4, steps=RandomSteps(1, 64)) for _ in range(2))
    drawn = draw(one, 30)
    other.load_state_dict(one.state_dict())  # a run that resumes here
    rest = draw(one, 20)
    assert draw(other, 20) == rest
    states = {"drawn": torch.tensor(drawn + rest)}
    for name, (differentiation, aux_weight, _) in METHODS.items():
        model = Model(differentiation)
        train(DistributedDataParallel(model), shard(rank), aux_weight)
        assert all(parameter.grad is not None for parameter in model.parameters())
        states[name] = model.state_dict()
    torch.save(states, folder / f"state.{rank}")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """States of both processes, for each method."""
    folder = tmp_path_factory.mktemp("ddp")
    processes = mp.spawn(work, (folder,), nprocs=len(SHARDS), join=False)
    deadline = time.monotonic() + SECONDS
    try:
        while not processes.join(timeout=1):
            assert time.monotonic() < deadline, "the processes did not end"
    finally:
        for process in processes.processes:
            process.kill()
    return [torch.load(folder / f"state.{rank}", weights_only=True) for rank in range(2)]


@pytest.mark.skipif(not dist.is_gloo_available(), reason="torch is built without gloo")
@pytest.mark.parametrize("method", METHODS)
def test_two_processes_train_as_one(method, trained):
    first, second = (states[method] for states in trained)
    differentiation, aux_weight, unlearned = METHODS[method]
    model = Model(differentiation)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    train(model, [*shard(0), *shard(1)], aux_weight)
    for name, expected in model.state_dict().items():
        assert torch.equal(first[name], second[name]), name
        torch.testing.assert_close(first[name], expected, rtol=1e-10, atol=1e-12, msg=name)
    for name, _ in model.named_parameters():
        learned = not name.startswith(unlearned)
        assert torch.equal(model.state_dict()[name], start[name]) != learned, name


@pytest.mark.skipif(not dist.is_gloo_available(), reason="torch is built without gloo")
def test_all_processes_draw_the_same_number_of_steps(trained):
    """With seeds that differ between the processes, and go on where a layer was saved."""
    first, second = (states["drawn"] for states in trained)
    assert torch.equal(first, second)
    assert set(first.tolist()) == set(RandomSteps(1, 64).choices)
