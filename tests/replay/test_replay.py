"""The plain call on a GPU replays recorded solves: with the same results, and whatever happens
between a forward and its backward."""

import copy
import gc
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import equipool
from equipool import (
    EquilibriumAggregation,
    GradientDescent,
    HeavyBall,
    Nesterov,
    Newton,
    NormalStart,
    Polished,
    RandomSteps,
    ResNetPotential,
    RestrainedNesterov,
    SafeguardedNesterov,
    ToTolerance,
    Truncated,
    closed_form,
)
from equipool.replay import Replays
from equipool.replay.capacity import Capacity, capacity_for
from equipool.replay.replays import MOST_GRAPHS
from equipool.replay.stopping import stride

gpu = pytest.mark.gpu


def make_layer(**settings):
    torch.manual_seed(0)
    potential = ResNetPotential(16, 24, (32, 24, 8))
    return EquilibriumAggregation(16, 24, potential=potential, **settings)


def make_batch(num_sets, num_elements, seed=0):
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(num_sets, (num_elements,), generator=generator).sort().values
    index[-1] = num_sets - 1
    return torch.randn(num_elements, 16, generator=generator).cuda(), index.cuda()


def outcome(layer, x, *args, loss=lambda y: y.square().mean(), **kwargs):
    """Output and gradients of a call."""
    x = x.clone().requires_grad_()
    y = layer(x, *args, **kwargs)
    parameters = [p for p in layer.parameters() if p.requires_grad]
    return [y.detach(), *torch.autograd.grad(loss(y), [x, *parameters])]


def assert_same(found, expected, tolerance=1e-4):
    for one, other in zip(found, expected, strict=True):
        one, other = one.detach(), other.detach()
        scale = other.abs().max().clamp(min=1e-6)
        assert float((one - other).abs().max() / scale) < tolerance


@pytest.fixture
def pair():
    """A layer that replays, recorded already, and one that launches."""
    fast, slow = make_layer().cuda(), make_layer(cuda_graphs=False).cuda()
    for seed in range(3):
        outcome(fast, *make_batch(8, 200, seed))
        with torch.no_grad():
            fast(*make_batch(8, 200, seed))
    assert len(fast._replays) >= 2
    return fast, slow


@gpu
@pytest.mark.parametrize("num_sets", [1, 7, 8, 100, 1000])
def test_changing_sizes_give_what_launching_gives(pair, num_sets):
    fast, slow = pair
    for seed in range(4):
        batch = make_batch(num_sets, 20 * num_sets + 11 * seed, seed)
        assert_same(outcome(fast, *batch), outcome(slow, *batch))
        with torch.no_grad():
            assert_same([fast(*batch)], [slow(*batch)])


@gpu
def test_layouts(pair):
    fast, slow = pair
    x, index = make_batch(8, 200)
    shuffled = torch.randperm(200, device="cuda")
    ptr = torch.searchsorted(index, torch.arange(9, device="cuda"))
    padded, mask = torch.randn(8, 25, 16, device="cuda"), torch.rand(8, 25, device="cuda") < 0.7
    for _ in range(2):
        for args, kwargs in [
            ((x, index), {}),
            ((x[shuffled], index[shuffled]), {}),
            ((x, index), {"dim_size": 11}),
            ((x,), {"ptr": ptr}),
            ((padded,), {"mask": mask}),
            ((padded,), {}),
            ((x, index), {"mask": index != 3, "dim_size": 8}),
        ]:
            assert_same(outcome(fast, *args, **kwargs), outcome(slow, *args, **kwargs))


@gpu
def test_a_second_forward_before_the_first_backward(pair):
    fast, slow = pair
    batches = [make_batch(8, 200 + 5 * seed, seed) for seed in range(3)]
    expected = [outcome(slow, *batch) for batch in batches]
    inputs = [batch[0].clone().requires_grad_() for batch in batches]
    outputs = [fast(x, batch[1]) for x, batch in zip(inputs, batches, strict=True)]
    for x, y, wanted in zip(inputs, outputs, expected, strict=True):
        found = torch.autograd.grad(y.square().mean(), [x, *fast.parameters()])
        assert_same([y.detach(), *found], wanted)


@gpu
def test_backward_twice_and_outputs_that_are_kept(pair):
    fast, slow = pair
    batch = make_batch(8, 200)
    x = batch[0].clone().requires_grad_()
    y = fast(x, batch[1])
    kept = y.detach().clone()
    first = torch.autograd.grad(y.square().mean(), x, retain_graph=True)
    fast(*make_batch(8, 210, 1)).sum().backward()
    second = torch.autograd.grad(y.square().mean(), x)
    assert torch.equal(first[0], second[0])
    assert torch.equal(y, kept)
    assert_same(first, outcome(slow, *batch)[1:2])


@gpu
def test_gradients_accumulate(pair):
    fast, slow = pair
    for layer in pair:
        layer.zero_grad()
        for seed in range(3):
            layer(*make_batch(8, 200, seed)).square().mean().backward()
    assert_same([p.grad for p in fast.parameters()], [p.grad for p in slow.parameters()])


@gpu
def test_training_with_an_ordinary_optimiser(pair):
    """Parameters change in place between calls, and a replay reads the new values."""
    losses = []
    for layer in pair:
        loss = layer(*make_batch(8, 200)).sum()  # its graph is alive when the next is recorded
        optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3)
        for seed in range(10):
            optimizer.zero_grad()
            loss = layer(*make_batch(8, 200 + seed, seed)).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@gpu
def test_a_parameter_that_changes_before_the_backward_is_noticed(pair):
    fast, _ = pair
    x, index = make_batch(8, 200)
    loss = fast(x.requires_grad_(), index).square().mean()
    with torch.no_grad():
        fast.potential.linears[0].weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@gpu
@pytest.mark.parametrize(
    "change",
    [
        lambda layer: setattr(layer, "num_steps", 4),
        lambda layer: setattr(layer, "scaling", "mean"),
        lambda layer: setattr(layer, "differentiation", Truncated(2)),
        lambda layer: setattr(layer, "solver", Nesterov(0.02, 0.5).cuda()),
        lambda layer: setattr(layer.potential.norms[0], "eps", 0.1),
        lambda layer: setattr(layer.potential, "reduction", "sum"),
        lambda layer: layer.potential.linears[1].requires_grad_(False),
        lambda layer: nn.init.ones_(layer.potential.linears[1].bias),
    ],
)
def test_changes_take_effect(pair, change):
    for layer in pair:
        change(layer)
    fast, slow = pair
    for seed in range(3):
        batch = make_batch(8, 200, seed)
        assert_same(outcome(fast, *batch), outcome(slow, *batch))


@gpu
def test_moved_and_converted_layers(pair):
    fast, slow = pair
    batch = make_batch(8, 200)
    fast.cpu().cuda()
    for _ in range(3):
        assert_same(outcome(fast, *batch), outcome(slow, *batch))
    fast.bfloat16(), slow.bfloat16()
    x = batch[0].bfloat16()
    for _ in range(3):
        assert_same(outcome(fast, x, batch[1]), outcome(slow, x, batch[1]), 0.05)


@gpu
def test_copies_and_state(pair):
    fast, slow = pair
    batch = make_batch(8, 200)
    for other in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        assert len(other._replays) == 0
        for _ in range(3):
            assert_same(outcome(other, *batch), outcome(slow, *batch))
    state = {name: value + 0.01 for name, value in fast.state_dict().items()}
    for layer in pair:
        layer.load_state_dict(state)
    assert_same(outcome(fast, *batch), outcome(slow, *batch))


@gpu
def test_two_layers_share_a_potential():
    def total(cuda_graphs):
        first = make_layer(cuda_graphs=cuda_graphs).cuda()
        second = EquilibriumAggregation(
            16, 24, potential=first.potential, num_steps=3, cuda_graphs=cuda_graphs
        ).cuda()
        for seed in range(3):
            first.zero_grad()
            second.zero_grad()
            x, index = make_batch(8, 200, seed)
            (first(x, index) + second(x, index)).square().mean().backward()
        return [p.grad for p in first.parameters()]

    assert_same(total(True), total(False))


@gpu
def test_modes(pair):
    fast, slow = pair
    batch = make_batch(8, 200)
    for _ in range(2):
        for dtype in (None, torch.bfloat16):
            with torch.autocast("cuda", dtype or torch.bfloat16, enabled=dtype is not None):
                tolerance = 1e-4 if dtype is None else 0.05
                assert_same(outcome(fast, *batch), outcome(slow, *batch), tolerance)
                with torch.inference_mode():
                    assert_same([fast(*batch)], [slow(*batch)], tolerance)
                with torch.no_grad():
                    assert_same([fast(*batch)], [slow(*batch)], tolerance)


@gpu
def test_several_streams(pair):
    fast, slow = pair
    batches = [make_batch(8, 200 + seed, seed) for seed in range(8)]
    expected = [outcome(slow, *batch) for batch in batches]
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    found = []
    for number, batch in enumerate(batches):
        with torch.cuda.stream(streams[number % 4]):
            found.append(outcome(fast, *batch))
    torch.cuda.synchronize()
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other)


@gpu
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node")  # torch notices the threads
def test_several_threads(pair):
    fast, slow = pair
    batches = [make_batch(8, 200 + seed, seed) for seed in range(4)]
    expected = [outcome(slow, *batch) for batch in batches]
    torch.cuda.synchronize()

    def work(batch):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(5):
                found = outcome(fast, *batch)
            torch.cuda.current_stream().synchronize()
        return found

    with ThreadPoolExecutor(4) as threads:
        for found, wanted in zip(threads.map(work, batches), expected, strict=True):
            assert_same(found, wanted)


@gpu
def test_graphs_are_bounded():
    """Sizes of two octaves: graphs that serve more of them each."""
    fast, slow = make_layer().cuda(), make_layer(cuda_graphs=False).cuda()
    for seed, num_elements in enumerate(range(2000, 9000, 130)):
        batch = make_batch(50, num_elements, seed)
        with torch.no_grad():
            assert_same([fast(*batch)], [slow(*batch)])
        assert len(fast._replays) <= MOST_GRAPHS
    assert len(fast._replays) > 0


@gpu
def test_sizes_that_vary_too_much_are_launched_with_one_message(recwarn):
    fast = make_layer().cuda()
    with torch.no_grad():
        for _ in range(2):
            for power in range(6, 20):
                for part in range(8):
                    fast(*make_batch(3, int(2 ** (power + part / 8))))
    messages = [str(w.message) for w in recwarn if "vary too much" in str(w.message)]
    assert len(messages) == 1
    assert len(fast._replays) == 0


@gpu
def test_a_set_that_is_not_finite_spoils_no_later_batch(pair):
    fast, slow = pair
    x, index = make_batch(8, 200)
    x[-3:] = torch.nan
    outcome(fast, x, index)
    batch = make_batch(8, 190, 1)
    assert_same(outcome(fast, *batch), outcome(slow, *batch))


SOLVERS = {
    "nesterov": Nesterov,
    "heavy ball": HeavyBall,
    "gradient descent": GradientDescent,
    "restrained": lambda: RestrainedNesterov(0.1, 0.5, max_step=0.5, curvature_safe=True),
    "safeguarded": SafeguardedNesterov,
    "newton": Newton,
    "polished": lambda: Polished(Nesterov()),
}


@gpu
@pytest.mark.parametrize("make_solver", SOLVERS.values(), ids=SOLVERS)
@pytest.mark.parametrize("steps", [4, ToTolerance(1e-2, max_steps=60)], ids=["fixed", "tolerance"])
def test_every_solver(make_solver, steps):
    fast = make_layer(solver=make_solver(), steps=steps).cuda().double()
    slow = make_layer(solver=make_solver(), steps=steps, cuda_graphs=False).cuda().double()
    for seed in range(3):
        x, index = make_batch(8, 200 + seed, seed)
        with torch.no_grad():
            assert_same([fast(x.double(), index)], [slow(x.double(), index)], 1e-9)
        if steps == 4:
            assert_same(outcome(fast, x.double(), index), outcome(slow, x.double(), index), 1e-9)
    assert bool(len(fast._replays)) == fast.solver.recordable


@gpu
def test_sets_stop_at_the_tolerance():
    fast = make_layer(steps=ToTolerance(1e-2, max_steps=100)).cuda()
    slow = make_layer(steps=ToTolerance(1e-2, max_steps=100), cuda_graphs=False).cuda()
    with torch.no_grad():
        for seed in range(3):
            batch = make_batch(8, 200, seed)
            found, expected = fast.solve(*batch), slow.solve(*batch)
            assert_same([found.y, found.residual], [expected.y, expected.residual], 1e-3)
            assert (found.steps - expected.steps).abs().max() <= 1  # rounding may decide
            assert torch.equal(found.converged, expected.converged)
    assert len(fast._replays) > 0


@gpu
def test_solve_and_record(pair):
    fast, slow = pair
    for seed in range(3):
        batch = make_batch(8, 200, seed)
        for diagnostics in (True, False):
            losses = []
            for layer in (fast, slow):
                layer.zero_grad()
                with equipool.record(diagnostics) as solutions:
                    y = layer(*batch)
                (y.square().mean() + 0.1 * solutions.aux_loss).backward()
                losses.append([solutions.aux_loss.detach(), *(p.grad for p in layer.parameters())])
            assert_same(*losses)
        found, expected = fast.solve(*batch), slow.solve(*batch)
        assert_same([found.energy, found.residual], [expected.energy, expected.residual], 1e-3)


@gpu
@pytest.mark.parametrize("name", ["mean", "median", "sum", "max"])
def test_closed_forms(name):
    layer = getattr(closed_form, name)(16).cuda()
    batch = make_batch(8, 200)
    with torch.no_grad():
        first, *later = (layer(*batch) for _ in range(3))
    for other in later:
        assert_same([other], [first])


@gpu
def test_own_potentials_and_hooks_are_launched():
    class Own(nn.Module):
        calls = 0

        def forward(self, x, y):
            self.calls += 1
            return (x - y).square().sum(-1)

    own = EquilibriumAggregation(16, 16, potential=Own()).cuda()
    for _ in range(3):
        before = own.potential.calls
        own(*make_batch(8, 200))
        assert own.potential.calls > before
    assert len(own._replays) == 0


@gpu
def test_inside_a_capture_and_with_autograd_functions(pair):
    fast, slow = pair
    x, index = make_batch(8, 200)
    expected = slow(x, index).detach()
    step = equipool.capture_step(lambda: fast(x, index, dim_size=8).detach())
    assert_same([step()], [expected])
    y = torch.utils.checkpoint.checkpoint(fast, x.requires_grad_(), index, use_reentrant=False)
    assert_same(torch.autograd.grad(y.square().mean(), x), outcome(slow, x.detach(), index)[1:2])


@gpu
def test_a_second_gradient_is_refused_with_advice(pair):
    fast, _ = pair
    x, index = make_batch(8, 200)
    x.requires_grad_()
    with pytest.raises(RuntimeError, match="cuda_graphs=False"):
        torch.autograd.grad(fast(x, index).sum(), x, create_graph=True)


@gpu
def test_memory_is_not_held_by_a_layer_that_is_gone():
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    layer = make_layer().cuda()
    for _ in range(3):
        outcome(layer, *make_batch(1000, 50_000))
    del layer
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before < 64 << 20


def test_capacities_hold_similar_batches():
    for elements in (1, 10, 200, 6656, 53_000, 10**6):
        for waste in (1 / 64, 1 / 8, 1 / 2):
            need = Capacity(elements, max(1, elements // 26))
            capacity = capacity_for(need, waste)
            assert capacity.holds(need, waste)
            assert not capacity.holds(Capacity(capacity.elements + 1, need.sets), waste)
            assert not capacity.holds(Capacity(capacity.elements // 4, need.sets), waste) or (
                capacity.elements <= 85
            )


def test_copies_start_without_graphs():
    replays = Replays()
    replays.failed = True
    assert not copy.deepcopy(replays).failed
    assert not pickle.loads(pickle.dumps(replays)).failed


def test_on_a_cpu_nothing_is_recorded():
    layer = make_layer()
    for _ in range(3):
        layer(torch.randn(5, 16)).sum().backward()
    assert len(layer._replays) == 0


@pytest.mark.parametrize("num_steps", [1, 7, 10, 60, 199, 200])
def test_strides_make_up_the_number_of_steps(num_steps):
    assert num_steps % stride(num_steps) == 0


@gpu
def test_each_random_number_of_steps_has_its_graph():
    fast = make_layer(steps=RandomSteps(1, 4), differentiation=Truncated(2)).cuda()
    slow = make_layer(steps=RandomSteps(1, 4), differentiation=Truncated(2), cuda_graphs=False)
    slow.cuda()
    for seed in range(30):
        found = []
        for layer in (fast, slow):
            torch.manual_seed(seed)
            found.append(outcome(layer, *make_batch(8, 200, seed)))
        assert_same(*found)
    assert len(fast._replays) == 3


@gpu
def test_random_starts_are_launched_in_training_and_replayed_in_evaluation():
    layer = make_layer(start=NormalStart(24)).cuda()
    x, index = make_batch(8, 200)
    ys = [layer(x, index).detach() for _ in range(4)]
    assert len(layer._replays) == 0
    assert not any(torch.equal(ys[0], y) for y in ys[1:])
    layer.eval()
    with torch.no_grad():
        ys = [layer(x, index).clone() for _ in range(4)]
    assert len(layer._replays) == 1
    assert_same(ys[1:], [ys[0]] * 3)
