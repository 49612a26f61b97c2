"""Processes that share the elements of sets compute what one process does that has all of them."""

import time
from contextlib import nullcontext
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import equipool
from cases import SumStart, assert_near, flatten, make_layer, make_sets
from equipool import (
    ConvexPotential,
    EquilibriumAggregation,
    FixedSteps,
    Implicit,
    LearnedStart,
    Nesterov,
    NormalStart,
    RandomSteps,
    ResNetPotential,
    SafeguardedNesterov,
    SquaredNorm,
    StronglyConvexNesterov,
    ToTolerance,
    Truncated,
    Unrolled,
    distributed,
)
from equipool.distributed import average_gradients, sharded
from equipool.large import chunked, solve_chunks
from equipool.live import LiveSets
from seeds import shift_seeds

SECONDS, RANKS, SIZES, NAN = 240, 4, (5, 1, 0, 7), float("nan")

needs_gloo = pytest.mark.skipif(not dist.is_gloo_available(), reason="torch is built without gloo")

# How to differentiate, how long to search, how many processes share the sets, and the solver.
CASES = {
    "unrolled": (Unrolled(), FixedSteps(5), 3, None),
    "truncated, to a tolerance": (Truncated(3), ToTolerance(1e-2, 40), 2, None),
    "implicit": (Implicit(), ToTolerance(1e-2, 60), 4, None),
    "implicit that falls back": (Implicit("cholesky"), FixedSteps(3), 2, None),
    "safeguarded": (Unrolled(), FixedSteps(5), 2, SafeguardedNesterov(0.05)),
}


class Model(nn.Module):
    """An encoder before the layer, and a head after it."""

    def __init__(self, differentiation, steps, solver=None):
        super().__init__()
        torch.manual_seed(4)
        self.encoder = nn.Linear(3, 3).double()
        self.pool = make_layer(learning_rate=0.02, momentum=0.6, seed=2, start=LearnedStart(4))
        self.pool.differentiation, self.pool.steps = differentiation, steps
        self.pool.solver = self.pool.solver if solver is None else solver.double()
        self.head = nn.Linear(4, 2).double()

    def forward(self, x, index, dim_size):
        return self.head(self.pool(self.encoder(x), index, dim_size=dim_size))


def batch():
    x, index = flatten(make_sets(SIZES, seed=3))
    order = torch.arange(len(x)).flip(0)  # no order
    return x[order], index[order]


def part(tensor, rank, size):
    """What a process has: the last one of three has nothing."""
    if size == 3:
        return tensor[:0] if rank == 2 else tensor[rank::2]
    return tensor[rank::size]


def step(model, x, index):
    """A training step's output and gradients; the auxiliary loss is part of the loss."""
    x = x.clone().requires_grad_()
    with equipool.record(diagnostics=True) as solutions:
        out = model(x, index, len(SIZES))
    (out.square().mean() + 0.1 * solutions.aux_loss).backward()
    (found,) = solutions
    names = ("y", "residual", "energy", "num_steps", "converged")
    return {name: getattr(found, name).detach() for name in names}, x.grad


def gradients(model):
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def shared_step(name, rank, group):
    *settings, size, solver = CASES[name]
    model = Model(*settings, solver)
    with sharded(group):
        found, by_x = step(model, *(part(tensor, rank, size) for tensor in batch()))
    average_gradients(model, group)
    return {**found, **gradients(model), "by_x": by_x / size}


def train(model, x, index, num_sets, group=None, aux_weight=0.0):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        shared = nullcontext() if group is None else sharded(group)
        with shared, equipool.record(diagnostics=False) as solutions:
            out = model(x, index, num_sets)
        loss = (out - 1).square().mean()
        # Without a weight, nothing of it: a zero would reach every parameter as well.
        (loss + aux_weight * solutions.aux_loss if aux_weight else loss).backward()
        optimizer.step()
    state = model.state_dict().items()
    return {n.removeprefix("module."): v.clone() for n, v in state if v.is_floating_point()}


MESH = flatten(make_sets((5, 3, 4, 6), seed=9))


def mesh(rank, group):
    """Two sets on ranks 0 and 1, two on ranks 2 and 3; DistributedDataParallel over all of them."""
    x, index = MESH
    mine = index // 2 == rank // 2
    x, index = x[mine], index[mine] - 2 * (rank // 2)
    model = DistributedDataParallel(Model(Unrolled(), FixedSteps(4)))
    return train(model, x[rank % 2 :: 2], index[rank % 2 :: 2], 2, group)


# How to differentiate, weight of the auxiliary loss, and the parts that learn nothing that way.
WHOLE_SETS = {
    "unrolled": (Unrolled(), 0.1, ()),
    "one step": (Truncated(1), 0.0, ("pool.start",)),
    "implicit": (Implicit(), 0.0, ("pool.start", "pool.solver")),
}


def converging(differentiation):
    model = Model(differentiation, FixedSteps(300), Nesterov(0.03, 0.8))
    model.pool.potential = ConvexPotential(3, 4, (5, 3)).double()
    return model


def whole_sets(rank):
    """DistributedDataParallel alone: two of four sets on each of two processes."""
    x, index = MESH
    mine, found = index // 2 == rank, {}
    for name, (differentiation, aux_weight, _) in WHOLE_SETS.items():
        model = DistributedDataParallel(converging(differentiation))
        found[name] = train(model, x[mine], index[mine] - 2 * rank, 2, aux_weight=aux_weight)
        assert all(parameter.grad is not None for parameter in model.parameters())
    return found


def strongly_convex():
    torch.manual_seed(3)
    return EquilibriumAggregation(
        3, 2, potential=ConvexPotential(3, 2, (6, 5)), regularizer=SquaredNorm(1.0),
        solver=StronglyConvexNesterov(), steps=ToTolerance(1e-12, 3000),
    ).double()  # fmt: skip


def other_calls(rank, group):
    """What is not a training step, on two processes."""
    x, index = batch()
    mine, which = part(x, rank, 2), part(index, rank, 2)
    found = {}
    with sharded(group), torch.no_grad():
        layer = strongly_convex()
        found["stopped"] = layer.solve(mine, which, dim_size=4).y  # drops the sets that stop
        found["energy"] = layer.energy(mine, which, dim_size=4)(torch.ones(4, 2).double())
        torch.manual_seed(rank)
        found["random start"] = make_layer(start=NormalStart(4))(mine, which, dim_size=4)
        drawn = make_layer()
        drawn.steps = RandomSteps(1, 8)
        found["random steps"] = drawn(mine, which, dim_size=4)
        bad = mine.clone()
        if rank == 1:
            bad[which == 3] = NAN
        found["nan"] = make_layer()(bad, which, dim_size=4)
    layer = make_layer()
    with sharded(group):
        solve_chunks(layer, chunked(mine, which, size=2), dim_size=4).y.square().mean().backward()
    average_gradients(layer, group)
    found["chunks"] = layer.potential.linears[0].weight.grad
    return found


# What the second of two processes may do in another way, and what the message names.
DISAGREE = {
    "dim_size": "dim_size is 4, in 4 rows on rank 0 of the group and 5, in 5",
    "dtype": "float64",
    "scaling": "scaling is ('log',) on rank 0 of the group and ('sum',) on rank 1",
    "parameters": "sum of the layer's parameters is",
    "nothing": "no error",
}


def message(case, rank, group):
    x, index = batch()
    other = rank == 1
    layer = make_layer(
        scaling="sum" if other and case == "scaling" else "log",
        dtype=torch.float32 if other and case == "dtype" else torch.float64,
    )
    with torch.no_grad():
        layer.potential.linears[0].bias[0] += 1e-6 * (other and case == "parameters")
    x = x.to(layer.potential.linears[0].bias.dtype)
    try:
        with sharded(group):
            layer(x, index, dim_size=4 + (other and case == "dim_size"))
    except ValueError as error:
        return str(error)
    return "no error"


def work(rank, folder):
    shift_seeds()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=RANKS,
        timeout=timedelta(seconds=SECONDS),
    )  # fmt: skip
    groups = {size: dist.new_group(list(range(size))) for size in (2, 3, 4)}
    rows = [dist.new_group([2 * i, 2 * i + 1]) for i in range(2)]
    found = {name: shared_step(name, rank, groups[case[2]])
             for name, case in CASES.items() if rank < case[2]}  # fmt: skip
    found["whole sets"] = whole_sets(rank // 2)
    if rank < 2:
        found["other calls"] = other_calls(rank, groups[2])
        found["messages"] = {case: message(case, rank, groups[2]) for case in DISAGREE}
    found["mesh"] = mesh(rank, rows[rank // 2])
    torch.save(found, folder / f"found.{rank}")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each process found."""
    folder = tmp_path_factory.mktemp("sharded")
    processes = mp.spawn(work, (folder,), nprocs=RANKS, join=False)
    deadline = time.monotonic() + SECONDS
    try:
        while not processes.join(timeout=1):
            assert time.monotonic() < deadline, "the processes did not end"
    finally:
        for process in processes.processes:
            process.kill()
    return [torch.load(folder / f"found.{rank}", weights_only=True) for rank in range(RANKS)]


def assert_all(found, expected):
    """Equal to the bit between the processes, and near what one process finds."""
    for one in found:
        for name, value in expected.items():
            assert torch.equal(one[name], found[0][name]), name
            assert_near(one[name].double(), value.double(), 1e-10)


@needs_gloo
@pytest.mark.processes
class TestProcesses:
    @pytest.mark.parametrize("name", CASES)
    def test_a_training_step(self, name, found):
        *settings, size, solver = CASES[name]
        model, (x, index) = Model(*settings, solver), batch()
        expected, by_x = step(model, x, index)
        assert_all([one[name] for one in found[:size]], expected | gradients(model))
        for rank in range(size):
            assert_near(found[rank][name]["by_x"], part(by_x, rank, size), 1e-10)

    def test_beside_ddp_over_sets(self, found):
        expected = train(Model(Unrolled(), FixedSteps(4)), *MESH, 4)
        assert_all([one["mesh"] for one in found], expected)

    @pytest.mark.parametrize("name", WHOLE_SETS)
    def test_ddp_over_whole_sets(self, name, found):
        differentiation, aux_weight, unlearned = WHOLE_SETS[name]
        model = converging(differentiation)
        start = {key: value.clone() for key, value in model.named_parameters()}
        expected = train(model, *MESH, 4, aux_weight=aux_weight)
        assert_all([one["whole sets"][name] for one in found], expected)
        for key, value in start.items():
            assert torch.equal(expected[key], value) == key.startswith(unlearned), key

    def test_other_calls(self, found):
        one, two = (found[rank]["other calls"] for rank in range(2))
        for name, value in one.items():
            assert torch.equal(value.nan_to_num(), two[name].nan_to_num()), name
        x, index = batch()
        layer = strongly_convex()
        with torch.no_grad():
            assert_near(one["stopped"], layer(x, index, dim_size=4), 1e-10)
            energy = layer.energy(x, index, dim_size=4)(torch.ones(4, 2).double())
        assert_near(one["energy"], energy, 1e-10)
        assert one["random start"].std() > 0
        steps = RandomSteps(1, 8).choices
        outputs = [make_layer(num_steps=number)(x, index, dim_size=4) for number in steps]
        assert any(torch.allclose(one["random steps"], output) for output in outputs)
        assert one["nan"].isnan().all(-1).tolist() == [False, False, False, True]
        clean = make_layer()(x, index, dim_size=4)
        assert_near(one["nan"][:3], clean[:3], 1e-10)
        layer = make_layer()
        layer(x, index, dim_size=4).square().mean().backward()
        assert_near(one["chunks"], layer.potential.linears[0].weight.grad, 1e-10)

    @pytest.mark.parametrize(("case", "expected"), DISAGREE.items())
    def test_processes_that_disagree_are_named(self, case, expected, found):
        assert all(expected in found[rank]["messages"][case] for rank in range(2))


def without_processes():
    with pytest.raises(RuntimeError, match="init_process_group"), sharded():
        pass
    with pytest.raises(RuntimeError, match="not initialised"):
        average_gradients(nn.Linear(1, 1))


@needs_gloo
class TestOneProcess:
    @pytest.fixture
    def group(self):
        """A group of this process alone."""
        without_processes()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        yield dist.group.WORLD
        dist.destroy_process_group()

    @pytest.fixture
    def twice(self, group, monkeypatch):
        """As if another process had the same elements."""
        monkeypatch.setattr(distributed, "_total", lambda tensor, group: 2 * tensor.detach())

    def test_the_block_ends(self, twice):
        x, index = batch()
        layer = make_layer()
        with sharded():
            y = layer(x, index, dim_size=4)
        doubled = layer(torch.cat([x, x]), torch.cat([index, index]), dim_size=4)
        assert_near(y, doubled, 1e-10)
        with pytest.raises(ValueError, match="x has 2 channels"), sharded():
            layer(x[:, :2])
        alone = layer(x, index, dim_size=4)
        assert torch.equal(alone, make_layer()(x, index, dim_size=4))
        assert not torch.allclose(y, alone)

    @pytest.mark.parametrize("call", [equipool.laplace, equipool.influence, LiveSets])
    def test_what_needs_all_elements_is_refused(self, group, call):
        layer = EquilibriumAggregation(3, 4, steps=ToTolerance(1e-3, 100)).eval()
        with pytest.raises(RuntimeError, match=r"inside sharded\(\)"), sharded():
            _ = call(layer, torch.zeros(2, 3)).y

    @pytest.mark.parametrize(
        ("part", "named"),
        [
            ({"potential": ResNetPotential(3, 3, (7, 5), dropout=0.5)}, "dropout is 0.5"),
            ({"start": SumStart()}, "SumStart, which may read"),
        ],
    )
    def test_parts_that_cannot_be_shared_are_named(self, group, part, named):
        with pytest.raises(ValueError, match=named), sharded():
            EquilibriumAggregation(3, 3, **part)(torch.zeros(2, 3))

    def test_gradients_are_averaged(self, twice):
        """In two dtypes; those that no process has stay away."""
        module = nn.ModuleList([nn.Linear(2, 1), nn.Linear(1, 1), nn.Linear(1, 3).double()])
        module[0](torch.ones(1, 2)).sum().backward()
        module[2](torch.ones(1, 1).double()).sum().backward()
        average_gradients(module)
        assert module[0].weight.grad.eq(2).all()
        assert module[2].weight.grad.eq(2).all()
        assert module[1].weight.grad is None

    @pytest.mark.compile
    @pytest.mark.filterwarnings("ignore:.*Function'> should not be instant:DeprecationWarning")
    def test_a_compiled_layer_notices_the_block(self, twice):
        torch._dynamo.reset()
        x, index = batch()
        layer = make_layer()
        compiled = torch.compile(layer, backend="eager")
        outside = layer(x, index, dim_size=4)
        assert_near(compiled(x, index, dim_size=4), outside, 1e-10)
        with sharded():
            inside = layer(x, index, dim_size=4)
            assert_near(compiled(x, index, dim_size=4), inside, 1e-10)
        assert_near(compiled(x, index, dim_size=4), outside, 1e-10)
        assert not torch.allclose(inside, outside)
