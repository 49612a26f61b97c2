"""Processes that share the elements of sets compute what one process does that has all of them."""

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import equipool
from cases import assert_near, flatten, make_layer, make_sets
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

SECONDS = 240
RANKS = 4
SIZES = (5, 1, 0, 7)
NAN = float("nan")

needs_gloo = pytest.mark.skipif(not dist.is_gloo_available(), reason="torch is built without gloo")

# How to differentiate, how long to search, and how many processes share the sets.
METHODS = {
    "unrolled": (Unrolled(), FixedSteps(5), 4),
    "unrolled, to a tolerance": (Unrolled(), ToTolerance(1e-2, 40), 2),
    "truncated": (Truncated(3), FixedSteps(5), 3),
    "truncated, to a tolerance": (Truncated(3), ToTolerance(1e-2, 60), 2),
    "implicit": (Implicit(), ToTolerance(1e-4, 200), 4),
    "implicit that falls back": (Implicit("cholesky"), FixedSteps(3), 2),
}
SOLVERS = {
    "restrained": lambda: Nesterov(0.05, 0.5, max_step=0.5, curvature_safe=True),
    "safeguarded": lambda: SafeguardedNesterov(0.05),
}


class Model(nn.Module):
    """An encoder before the layer, and a head after it."""

    def __init__(self, differentiation, steps, solver=None):
        super().__init__()
        torch.manual_seed(4)
        self.encoder = nn.Linear(3, 3).double()
        self.pool = make_layer(learning_rate=0.02, momentum=0.6, seed=2, start=LearnedStart(4))
        self.pool.differentiation, self.pool.steps = differentiation, steps
        if solver is not None:
            self.pool.solver = SOLVERS[solver]().double()
        self.head = nn.Linear(4, 2).double()

    def forward(self, x, index, dim_size):
        return self.head(self.pool(self.encoder(x), index, dim_size=dim_size))


def batch():
    x, index = flatten(make_sets(SIZES, seed=3))
    order = torch.arange(len(x)).flip(0)  # no order
    return x[order], index[order]


def part(tensor, rank, size):
    """What a process has: the last one of three has nothing."""
    return (
        tensor[:0]
        if size == 3 and rank == 2
        else tensor[rank :: min(size, 2) if size == 3 else size]
    )


def step(model, x, index):
    """A training step's output and gradients; the auxiliary loss is part of the loss."""
    x = x.clone().requires_grad_()
    with equipool.record(diagnostics=True) as solutions:
        out = model(x, index, len(SIZES))
    (out.square().mean() + 0.1 * solutions.aux_loss).backward()
    (solution,) = solutions
    found = {"y": solution.y.detach(), "residual": solution.residual, "energy": solution.energy}
    found |= {"steps": solution.num_steps, "converged": solution.converged}
    return {n: v.detach() for n, v in found.items()}, x.grad


def shared_step(model, rank, size, group):
    x, index = (part(tensor, rank, size) for tensor in batch())
    with sharded(group):
        found, by_x = step(model, x, index)
    average_gradients(model, group)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {**found, **gradients, "by_x": by_x / size}


def train(model, x, index, num_sets, num_steps=2, group=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(num_steps):
        optimizer.zero_grad()
        if group is None:
            out = model(x, index, num_sets)
        else:
            with sharded(group):
                out = model(x, index, num_sets)
        (out - 1).square().mean().backward()
        optimizer.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


def mesh(rank, groups):
    """Two sets on ranks 0 and 1, two on ranks 2 and 3; DistributedDataParallel over all of them."""
    sets = make_sets((5, 3, 4, 6), seed=9)[2 * (rank // 2) :][:2]
    x, index = flatten(sets)
    model = DistributedDataParallel(Model(Unrolled(), FixedSteps(4)))
    state = train(
        model, x[rank % 2 :: 2], index[rank % 2 :: 2], 2, group=groups[f"row {rank // 2}"]
    )
    return {name.removeprefix("module."): value for name, value in state.items()}


def other_calls(rank, group):
    """What is not a training step, on two processes."""
    x, index = batch()
    mine, which = part(x, rank, 2), part(index, rank, 2)
    found = {}
    with sharded(group), torch.no_grad():
        layer = convex(Nesterov(0.05, 0.7), ToTolerance(1e-4, 400))
        solution = layer.solve(mine, which, dim_size=4)  # drops the sets that stop
        found["stopped"], found["steps"] = solution.y, solution.num_steps
        found["energy"] = layer.energy(mine, which, dim_size=4)(torch.ones(4, 2).double())
        torch.manual_seed(rank)
        random = make_layer(start=NormalStart(4))
        found["random start"] = random(mine, which, dim_size=4)
        drawn = make_layer()
        drawn.steps = RandomSteps(1, 8)
        found["random steps"] = drawn(mine, which, dim_size=4)
        bad = mine.clone()
        if rank == 1:
            bad[which == 3] = NAN
        found["nan"] = make_layer()(bad, which, dim_size=4)
        found["strongly convex"] = strongly_convex()(mine, which, dim_size=4)
    layer = make_layer()
    with sharded(group):
        solve_chunks(layer, chunked(mine, which, size=2), dim_size=4).y.square().mean().backward()
    average_gradients(layer, group)
    found["chunks"] = layer.potential.linears[0].weight.grad
    return found


def convex(solver, steps):
    """A long search of another energy may be chaotic, so that rounding decides where it ends."""
    torch.manual_seed(3)
    return EquilibriumAggregation(
        3, 2, potential=ConvexPotential(3, 2, (6, 5)), regularizer=SquaredNorm(1.0), solver=solver,
        steps=steps,
    ).double()  # fmt: skip


def strongly_convex():
    return convex(StronglyConvexNesterov(), ToTolerance(1e-12, 3000))


def messages(rank, group):
    """What is said when the second of two processes calls the layer in another way."""
    x, index = batch()

    def message(layer, x=x, dim_size=4):
        try:
            with sharded(group):
                layer(x, index, dim_size=dim_size)
        except ValueError as error:
            return str(error)
        return "no error"

    dtype = torch.float32 if rank else torch.float64
    other, changed = make_layer(), make_layer()
    other.steps = ToTolerance(1e-3) if rank else FixedSteps(6)
    with torch.no_grad():
        changed.potential.linears[0].bias[0] += 1e-6 * rank
    return {
        "dim_size": message(make_layer(), dim_size=4 + rank),
        "dtype": message(make_layer(dtype=dtype), x.to(dtype)),
        "steps": message(make_layer(num_steps=3 + rank)),
        "tolerance": message(other),
        "scaling": message(make_layer(scaling="sum" if rank else "log")),
        "parameters": message(changed),
        "requires_grad": message(make_layer(), x.clone().requires_grad_(rank == 1)),
        "agree": message(make_layer()),
    }


def work(rank, folder):
    shift_seeds()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=RANKS,
        timeout=timedelta(seconds=SECONDS),
    )  # fmt: skip
    groups = {size: dist.new_group(list(range(size))) for size in (2, 3, 4)}
    groups |= {f"row {i}": dist.new_group([2 * i, 2 * i + 1]) for i in range(2)}
    found = {}
    for name, (differentiation, steps, size) in METHODS.items():
        if rank < size:
            model = Model(differentiation, steps)
            found[name] = shared_step(model, rank, size, groups[size])
    if rank < 2:
        for name in SOLVERS:
            model = Model(Unrolled(), FixedSteps(5), name)
            found[name] = shared_step(model, rank, 2, groups[2])
        found["other calls"] = other_calls(rank, groups[2])
        found["messages"] = messages(rank, groups[2])
    found["mesh"] = mesh(rank, groups)
    torch.save(found, folder / f"found.{rank}")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each process found."""
    folder = tmp_path_factory.mktemp("sharding")
    processes = mp.spawn(work, (folder,), nprocs=RANKS, join=False)
    deadline = time.monotonic() + SECONDS
    try:
        while not processes.join(timeout=1):
            assert time.monotonic() < deadline, "the processes did not end"
    finally:
        for process in processes.processes:
            process.kill()
    return [torch.load(folder / f"found.{rank}", weights_only=True) for rank in range(RANKS)]


@needs_gloo
@pytest.mark.processes
class TestProcesses:
    def check(self, name, model, size, found):
        x, index = batch()
        expected, by_x = step(model, x, index)
        expected |= {name: parameter.grad for name, parameter in model.named_parameters()}
        for rank in range(size):
            mine = found[rank][name]
            for key in ("y", "residual", "energy", "steps", "converged"):
                assert torch.equal(mine[key], found[0][name][key]), key  # to the bit
            for key, value in expected.items():
                assert_near(mine[key].double(), value.double(), 1e-10)
            assert_near(mine["by_x"], part(by_x, rank, size), 1e-10)

    @pytest.mark.parametrize("method", METHODS)
    def test_any_differentiation(self, method, found):
        differentiation, steps, size = METHODS[method]
        self.check(method, Model(differentiation, steps), size, found)

    @pytest.mark.parametrize("solver", SOLVERS)
    def test_any_solver(self, solver, found):
        self.check(solver, Model(Unrolled(), FixedSteps(5), solver), 2, found)

    def test_beside_ddp_over_sets(self, found):
        model = Model(Unrolled(), FixedSteps(4))
        expected = train(model, *flatten(make_sets((5, 3, 4, 6), seed=9)), 4)
        for rank in range(RANKS):
            for name, value in expected.items():
                assert torch.equal(found[rank]["mesh"][name], found[0]["mesh"][name]), name
                assert_near(found[rank]["mesh"][name], value, 1e-10)

    def test_other_calls(self, found):
        one, two = (found[rank]["other calls"] for rank in range(2))
        for name, value in one.items():
            assert torch.equal(value.nan_to_num(), two[name].nan_to_num()), name
        x, index = batch()
        layer = convex(Nesterov(0.05, 0.7), ToTolerance(1e-4, 400))
        with torch.no_grad():
            expected = layer.solve(x, index, dim_size=4)
            energy = layer.energy(x, index, dim_size=4)(torch.ones(4, 2).double())
        assert_near(one["stopped"], expected.y, 1e-10)
        assert torch.equal(one["steps"], expected.num_steps)
        assert_near(one["energy"], energy, 1e-10)
        assert one["random start"].std() > 0
        steps = RandomSteps(1, 8).choices
        outputs = [make_layer(num_steps=number)(x, index, dim_size=4) for number in steps]
        assert any(torch.allclose(one["random steps"], output) for output in outputs)
        assert torch.equal(one["nan"].isnan().all(-1), torch.tensor([False, False, False, True]))
        clean = make_layer()(x, index, dim_size=4)
        assert_near(one["nan"][:3], clean[:3], 1e-10)
        assert_near(one["strongly convex"], strongly_convex()(x, index, dim_size=4), 1e-10)
        layer = make_layer()
        layer(x, index, dim_size=4).square().mean().backward()
        assert_near(one["chunks"], layer.potential.linears[0].weight.grad, 1e-10)

    @pytest.mark.parametrize(
        ("case", "message"),
        [
            ("dim_size", "dim_size is 4, in 4 rows on rank 0 of the group and 5, in 5"),
            ("dtype", "float64"),
            ("steps", "steps is "),
            ("tolerance", "steps is "),
            ("scaling", "scaling is ('log',) on rank 0 of the group and ('sum',) on rank 1"),
            ("parameters", "sum of the layer's parameters is"),
            ("requires_grad", "requires_grad of x is False on rank 0 of the group and True"),
            ("agree", "no error"),
        ],
    )
    def test_processes_that_disagree_are_named(self, case, message, found):
        for rank in range(2):
            assert message in found[rank]["messages"][case]


class TestOneProcess:
    @pytest.fixture
    def group(self):
        """A group of this process alone."""
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        yield dist.group.WORLD
        dist.destroy_process_group()

    @pytest.fixture
    def twice(self, group, monkeypatch):
        """As if another process had the same elements."""
        monkeypatch.setattr(distributed, "_total", lambda tensor, group: 2 * tensor.detach())

    def test_without_processes(self):
        with pytest.raises(RuntimeError, match=r"torchrun.*init_process_group"), sharded():
            pass
        with pytest.raises(RuntimeError, match="not initialised"):
            average_gradients(nn.Linear(1, 1))

    @needs_gloo
    def test_alone_nothing_changes(self, group):
        x, index = batch()
        layer = make_layer()
        with sharded():
            y = layer(x, index, dim_size=4)
        assert torch.equal(y, layer(x, index, dim_size=4))

    @needs_gloo
    def test_the_block_ends(self, twice):
        x, index = batch()
        layer = make_layer()
        with sharded():
            y = layer(x, index, dim_size=4)
        doubled = layer(torch.cat([x, x]), torch.cat([index, index]), dim_size=4)
        assert_near(y, doubled, 1e-10)
        assert not torch.allclose(y, layer(x, index, dim_size=4))
        with pytest.raises(ValueError, match="x has 2 channels"), sharded():
            layer(x[:, :2])
        assert torch.equal(layer(x, index, dim_size=4), make_layer()(x, index, dim_size=4))

    @needs_gloo
    @pytest.mark.parametrize("call", [equipool.laplace, equipool.influence, LiveSets])
    def test_what_needs_all_elements_is_refused(self, group, call):
        layer = EquilibriumAggregation(3, 4, steps=ToTolerance(1e-3, 100)).eval()
        with pytest.raises(RuntimeError, match=r"inside sharded\(\).*all elements"), sharded():
            _ = call(layer, torch.zeros(2, 3)).y

    @needs_gloo
    def test_dropout_is_named(self, group):
        layer = EquilibriumAggregation(3, 4, potential=ResNetPotential(3, 4, (7, 5), dropout=0.5))
        with pytest.raises(ValueError, match=r"dropout is 0.5"), sharded():
            layer(torch.zeros(2, 3))

    @needs_gloo
    def test_start_that_reads_elements_is_named(self, group):
        class MeanStart(equipool.Start):
            def forward(self, x, sets):
                return sets.sum(x)

        layer = EquilibriumAggregation(3, 3, start=MeanStart())
        with pytest.raises(ValueError, match="MeanStart, which may read"), sharded():
            layer(torch.zeros(2, 3))

    @needs_gloo
    def test_gradients_are_averaged_by_one_sum_for_all_of_a_kind(self, twice, monkeypatch):
        module = nn.ModuleList([nn.Linear(2, 1), nn.Linear(1, 1), nn.Linear(1, 3).double()])
        module[0](torch.ones(1, 2)).sum().backward()
        module[2](torch.ones(1, 1).double()).sum().backward()
        sums, total = [], distributed._total
        monkeypatch.setattr(
            distributed, "_total", lambda tensor, group: sums.append(tensor) or total(tensor, group)
        )
        average_gradients(module)
        assert len(sums) == 3  # which have one, and the two dtypes
        assert module[0].weight.grad.eq(2).all()
        assert module[2].weight.grad.eq(2).all()
        assert module[2].weight.grad.shape == (3, 1)
        assert module[1].weight.grad is None  # it has one nowhere

    @needs_gloo
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
