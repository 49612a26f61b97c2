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
    Nesterov,
    NormalStart,
    RandomSteps,
    ResNetPotential,
    ToTolerance,
    Truncated,
)
from equipool.replay.replays import MOST_GRAPHS

pytestmark = pytest.mark.gpu


def make_layer(**settings):
    torch.manual_seed(0)
    potential = ResNetPotential(16, 24, (32, 24, 8))
    return EquilibriumAggregation(16, 24, potential=potential, **settings).cuda()


def make_batch(num_sets=8, num_elements=200, seed=0):
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(num_sets, (num_elements,), generator=generator).sort().values
    index[-1] = num_sets - 1
    return torch.randn(num_elements, 16, generator=generator).cuda(), index.cuda()


def outcome(layer, x, *args, **kwargs):
    """Output and gradients of a call."""
    x = x.clone().requires_grad_()
    y = layer(x, *args, **kwargs)
    parameters = [p for p in layer.parameters() if p.requires_grad]
    return [y.detach(), *torch.autograd.grad(y.square().mean(), [x, *parameters])]


def assert_same(found, expected, tolerance=1e-4):
    for one, other in zip(found, expected, strict=True):
        one, other = one.detach(), other.detach()
        scale = other.abs().max().clamp(min=1e-6)
        assert float((one - other).abs().max() / scale) < tolerance


def check(pair, *args, tolerance=1e-4, gradients=True, **kwargs):
    """Both layers give the same, with gradients and without."""
    if gradients:
        assert_same(*(outcome(layer, *args, **kwargs) for layer in pair), tolerance)
    with torch.no_grad():
        assert_same(*([layer(*args, **kwargs)] for layer in pair), tolerance)


@pytest.fixture
def pair():
    """A layer that replays, recorded already, and one that launches."""
    fast, slow = make_layer(), make_layer(cuda_graphs=False)
    for seed in range(3):
        check((fast, slow), *make_batch(seed=seed))
    assert len(fast._replays) >= 2
    return fast, slow


@pytest.mark.parametrize("num_sets", [1, 7, 8, 100, 1000])
def test_changing_sizes_give_what_launching_gives(pair, num_sets):
    for seed in range(4):
        check(pair, *make_batch(num_sets, 20 * num_sets + 11 * seed, seed))


def test_layouts(pair):
    x, index = make_batch()
    shuffled = torch.randperm(200, device="cuda")
    ptr = torch.searchsorted(index, torch.arange(9, device="cuda"))
    padded, mask = torch.randn(8, 25, 16, device="cuda"), torch.rand(8, 25, device="cuda") < 0.7
    for _ in range(2):
        check(pair, x, index)
        check(pair, x[shuffled], index[shuffled])
        check(pair, x, index, dim_size=11)
        check(pair, x, ptr=ptr)
        check(pair, padded, mask=mask)
        check(pair, padded)
        check(pair, x, index, mask=index != 3, dim_size=8)


def test_a_second_forward_before_the_first_backward(pair):
    fast, slow = pair
    batches = [make_batch(8, 200 + 5 * seed, seed) for seed in range(3)]
    expected = [outcome(slow, *batch) for batch in batches]
    inputs = [x.clone().requires_grad_() for x, _ in batches]
    outputs = [fast(x, index) for x, (_, index) in zip(inputs, batches, strict=True)]
    for x, y, wanted in zip(inputs, outputs, expected, strict=True):
        found = torch.autograd.grad(y.square().mean(), [x, *fast.parameters()])
        assert_same([y, *found], wanted)


def test_backward_twice_and_outputs_that_are_kept(pair):
    fast, slow = pair
    batch = make_batch()
    x = batch[0].clone().requires_grad_()
    y = fast(x, batch[1])
    kept = y.detach().clone()
    first = torch.autograd.grad(y.square().mean(), x, retain_graph=True)
    fast(*make_batch(8, 210, 1)).sum().backward()
    second = torch.autograd.grad(y.square().mean(), x)
    assert torch.equal(first[0], second[0])
    assert torch.equal(y, kept)
    assert_same(first, outcome(slow, *batch)[1:2])


def test_gradients_accumulate(pair):
    for layer in pair:
        layer.zero_grad()
        for seed in range(3):
            layer(*make_batch(seed=seed)).square().mean().backward()
    assert_same(*([p.grad for p in layer.parameters()] for layer in pair))


def test_training_with_an_ordinary_optimiser(pair):
    """Parameters change in place between calls, and a replay reads the new values."""
    losses = []
    for layer in pair:
        loss = layer(*make_batch()).sum()  # its graph is alive when the next is recorded
        optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3)
        for seed in range(10):
            optimizer.zero_grad()
            loss = layer(*make_batch(8, 200 + seed, seed)).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_a_parameter_that_changes_before_the_backward_is_noticed(pair):
    fast, _ = pair
    x, index = make_batch()
    loss = fast(x.requires_grad_(), index).square().mean()
    with torch.no_grad():
        fast.potential.linears[0].weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: setattr(layer, "num_steps", 4),
        lambda layer: setattr(layer, "scaling", "mean"),
        lambda layer: setattr(layer, "differentiation", equipool.Truncated(2)),
        lambda layer: setattr(layer, "solver", Nesterov(0.02, 0.5).cuda()),
        lambda layer: setattr(layer.potential.norms[0], "eps", 0.1),
        lambda layer: setattr(layer.potential, "reduction", "sum"),
        lambda layer: layer.potential.linears[1].requires_grad_(False),
        lambda layer: nn.init.ones_(layer.potential.linears[1].bias),
        lambda layer: layer.cpu().cuda(),
        lambda layer: layer.load_state_dict(
            {name: value + 0.01 for name, value in layer.state_dict().items()}
        ),
    ],
)
def test_changes_take_effect(pair, change):
    for layer in pair:
        change(layer)
    for seed in range(3):
        check(pair, *make_batch(seed=seed))


def test_a_converted_layer(pair):
    x, index = make_batch()
    for layer in pair:
        layer.bfloat16()
    for _ in range(3):
        check(pair, x.bfloat16(), index, tolerance=0.05)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies(pair, again):
    fast, slow = pair
    other = again(fast)
    assert len(other._replays) == 0
    for _ in range(3):
        check((other, slow), *make_batch())


def test_two_layers_share_a_potential():
    def total(cuda_graphs):
        first = make_layer(cuda_graphs=cuda_graphs)
        second = EquilibriumAggregation(
            16, 24, potential=first.potential, num_steps=3, cuda_graphs=cuda_graphs
        ).cuda()
        for seed in range(3):
            first.zero_grad()
            second.zero_grad()
            x, index = make_batch(seed=seed)
            (first(x, index) + second(x, index)).square().mean().backward()
        return [p.grad for p in first.parameters()]

    assert_same(total(True), total(False))


@pytest.mark.parametrize(("short", "tolerance"), [(False, 1e-4), (True, 0.05)])
def test_modes(pair, short, tolerance):
    batch = make_batch()
    for _ in range(2):
        with torch.autocast("cuda", torch.bfloat16, enabled=short):
            check(pair, *batch, tolerance=tolerance)
            with torch.inference_mode():
                assert_same(*([layer(*batch)] for layer in pair), tolerance)


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


def test_graphs_are_bounded():
    """Sizes of two octaves: graphs that serve more of them each."""
    fast, slow = make_layer(), make_layer(cuda_graphs=False)
    for seed, num_elements in enumerate(range(2000, 9000, 130)):
        check((fast, slow), *make_batch(50, num_elements, seed), gradients=False)
        assert len(fast._replays) <= MOST_GRAPHS
    assert len(fast._replays) == MOST_GRAPHS


def test_a_set_that_is_not_finite_spoils_no_later_batch(pair):
    x, index = make_batch()
    x[-3:] = torch.nan
    outcome(pair[0], x, index)
    check(pair, *make_batch(8, 190, 1))


SOLVERS = {
    "nesterov": Nesterov,
    "heavy ball": equipool.GradientDescent,
    "gradient descent": equipool.GradientDescent,
    "restrained": lambda: equipool.Nesterov(0.1, 0.5, max_step=0.5, curvature_safe=True),
    "safeguarded": equipool.SafeguardedNesterov,
    "newton": equipool.Newton,
    "polished": lambda: equipool.Newton(after=Nesterov()),
}


@pytest.mark.parametrize("make_solver", SOLVERS.values(), ids=SOLVERS)
@pytest.mark.parametrize("steps", [4, ToTolerance(1e-2, max_steps=60)], ids=["fixed", "tolerance"])
def test_every_solver(make_solver, steps):
    fast, slow = (
        make_layer(solver=make_solver(), steps=steps, cuda_graphs=graphs).double()
        for graphs in (True, False)
    )
    for seed in range(3):
        x, index = make_batch(8, 200 + seed, seed)
        check((fast, slow), x.double(), index, tolerance=1e-9, gradients=steps == 4)
    assert bool(len(fast._replays)) == fast.solver.recordable


def test_sets_stop_at_the_tolerance():
    steps = ToTolerance(1e-2, max_steps=100)
    fast, slow = make_layer(steps=steps), make_layer(steps=steps, cuda_graphs=False)
    with torch.no_grad():
        for seed in range(3):
            found, expected = (layer.solve(*make_batch(seed=seed)) for layer in (fast, slow))
            assert_same([found.y, found.residual], [expected.y, expected.residual], 1e-3)
            assert (found.steps - expected.steps).abs().max() <= 1  # rounding may decide
            assert torch.equal(found.converged, expected.converged)
    assert len(fast._replays) > 0


@pytest.mark.parametrize("diagnostics", [True, False])
def test_record(pair, diagnostics):
    for seed in range(3):
        losses = []
        for layer in pair:
            layer.zero_grad()
            with equipool.record(diagnostics) as solutions:
                y = layer(*make_batch(seed=seed))
            (y.square().mean() + 0.1 * solutions.aux_loss).backward()
            losses.append([solutions.aux_loss, *(p.grad for p in layer.parameters())])
        assert_same(*losses)


def test_solve(pair):
    for seed in range(3):
        found, expected = (layer.solve(*make_batch(seed=seed)) for layer in pair)
        assert_same([found.energy, found.residual], [expected.energy, expected.residual], 1e-3)


@pytest.mark.parametrize("name", ["mean", "median", "sum", "max"])
def test_closed_forms(name):
    layer = getattr(equipool.closed_form, name)(16).cuda()
    with torch.no_grad():
        first, *later = (layer(*make_batch()) for _ in range(3))
    for other in later:
        assert_same([other], [first])


def test_inside_a_capture_and_with_autograd_functions(pair):
    fast, slow = pair
    x, index = make_batch()
    expected = slow(x, index).detach()
    step = equipool.capture_step(lambda: fast(x, index, dim_size=8).detach())
    assert_same([step()], [expected])
    y = torch.utils.checkpoint.checkpoint(fast, x.requires_grad_(), index, use_reentrant=False)
    assert_same(torch.autograd.grad(y.square().mean(), x), outcome(slow, x.detach(), index)[1:2])


def test_a_second_gradient_is_refused_with_advice(pair):
    x, index = make_batch()
    x.requires_grad_()
    with pytest.raises(RuntimeError, match="cuda_graphs=False"):
        torch.autograd.grad(pair[0](x, index).sum(), x, create_graph=True)


def test_memory_is_not_held_by_a_layer_that_is_gone():
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    layer = make_layer()
    for _ in range(3):
        outcome(layer, *make_batch(1000, 50_000))
    del layer
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before < 64 << 20


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
