"""Replays give what launching gives, whatever happens between a forward and its backward."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from replay_cases import (
    DEVICE,
    assert_same,
    check,
    launched,
    make_batch,
    make_layer,
    outcome,
    warm_up,
)
from torch.nn.utils.parametrizations import weight_norm

import equipool
from equipool import (
    Nesterov,
    NormalStart,
    RandomSteps,
    ToTolerance,
    Truncated,
)


@pytest.mark.parametrize("num_sets", [1, 7, 100])
def test_changing_sizes(layer, num_sets):
    for seed in range(3):
        check(layer, *make_batch(3 * num_sets + 11 * seed, num_sets, seed))


def test_layouts(layer):
    x, index = make_batch(20, 4)
    order = torch.randperm(20).to(DEVICE)
    ptr = torch.searchsorted(index, torch.arange(5, device=DEVICE))
    padded, mask = torch.randn(4, 6, 3, device=DEVICE), torch.rand(4, 6, device=DEVICE) < 0.7
    for _ in range(2):
        check(layer, x[order], index[order])
        check(layer, x, index, dim_size=6)
        check(layer, x, ptr=ptr)
        check(layer, padded, mask=mask)
        check(layer, padded)
        check(layer, x, index, mask=index != 3, dim_size=4)


def test_a_second_forward_before_the_first_backward(layer):
    batches = [make_batch(10 + seed, seed=seed) for seed in range(3)]
    expected = [outcome(launched(layer), *batch) for batch in batches]
    inputs = [x.clone().requires_grad_() for x, _ in batches]
    outputs = [layer(x, index) for x, (_, index) in zip(inputs, batches, strict=True)]
    for x, y, wanted in zip(inputs, outputs, expected, strict=True):
        found = torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])
        assert_same([y, *found], wanted)


def test_backward_twice_and_outputs_that_are_kept(layer):
    x, index = make_batch()
    y = layer(x.requires_grad_(), index)
    kept = y.detach().clone()
    first = torch.autograd.grad(y.square().sum(), x, retain_graph=True)
    outcome(layer, *make_batch(12, seed=1))
    second = torch.autograd.grad(y.square().sum(), x)
    assert torch.equal(first[0], second[0])
    assert torch.equal(y, kept)
    assert_same(first, outcome(launched(layer), x.detach(), index)[1:2])


def test_training_with_an_ordinary_optimiser(layer):
    """Parameters change in place between calls, and a replay reads the new values. Gradients of two
    batches accumulate."""
    losses = []
    for model in (launched(layer), layer):
        loss = model(*make_batch()).sum()  # its graph is alive when the next is recorded
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for seed in range(6):
            optimizer.zero_grad()
            for part in range(2):
                loss = model(*make_batch(10 + seed, seed=2 * seed + part)).square().mean()
                loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_a_parameter_that_changes_before_the_backward_is_noticed(layer):
    x, index = make_batch()
    loss = layer(x.requires_grad_(), index).square().mean()
    with torch.no_grad():
        layer.potential.linears[0].weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def move(parameter):
    parameter.data = parameter.data + 0.1


CHANGES = {
    "differentiation": lambda layer: setattr(layer.differentiation, "num_steps", 3),
    "other differentiation": lambda layer: setattr(layer, "differentiation", Truncated(2)),
    "solver": lambda layer: setattr(layer.solver, "gtol", 0.5),
    "other solver": lambda layer: setattr(layer, "solver", Nesterov(0.02, 0.5).to(DEVICE)),
    "solver's parameter": lambda layer: move(next(layer.solver.parameters())),
    "regularizer": lambda layer: setattr(
        layer, "regularizer", equipool.SquaredNorm(0, learnable=False)
    ),
    "steps": lambda layer: setattr(layer, "steps", 6),
    "scaling": lambda layer: setattr(layer, "scaling", "mean"),
    "part of the potential": lambda layer: setattr(layer.potential.norms[0], "eps", 0.1),
    "weight moved": lambda layer: move(layer.potential.linears[1].weight),
    "frozen": lambda layer: layer.potential.linears[1].requires_grad_(False),
    "loaded": lambda layer: layer.load_state_dict(
        {name: value + 0.01 for name, value in layer.state_dict().items()}
    ),
    "evaluation": lambda layer: layer.eval(),
    "hook": lambda layer: layer.potential.linears[1].register_forward_hook(lambda *c: 2 * c[-1]),
    "own forward": lambda layer: setattr(layer.potential.norms[0], "forward", lambda z: 2 * z),
    "parametrization": lambda layer: weight_norm(layer.potential.linears[0]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changes_take_effect(change):
    layer = warm_up(make_layer(differentiation=Truncated(1), steps=4), 2)
    change(layer)
    for seed in range(2):
        check(layer, *make_batch(seed=seed))


@pytest.mark.parametrize("again", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies_start_without_graphs(layer, again):
    other = again(layer)
    assert len(other._replays) == 0
    for _ in range(3):
        check(other, *make_batch())


def test_two_layers_share_a_potential():
    def total(cuda_graphs):
        first = make_layer(cuda_graphs=cuda_graphs)
        second = make_layer(first.potential, steps=2, cuda_graphs=cuda_graphs)
        for seed in range(3):
            first.zero_grad()
            second.zero_grad()
            batch = make_batch(seed=seed)
            (first(*batch) + second(*batch)).square().mean().backward()
        return [p.grad for p in first.parameters()]

    assert_same(total(True), total(False))


SOLVERS = {
    "nesterov": Nesterov,
    "gradient descent": equipool.GradientDescent,
    "restrained": lambda: Nesterov(0.1, 0.5, max_step=0.5, curvature_safe=True),
    "safeguarded": equipool.SafeguardedNesterov,
    "newton": equipool.Newton,
}


@pytest.mark.parametrize("make_solver", SOLVERS.values(), ids=SOLVERS)
@pytest.mark.parametrize("steps", [3, ToTolerance(0.05, max_steps=60)], ids=["fixed", "tolerance"])
def test_every_solver(make_solver, steps):
    layer = make_layer(solver=make_solver(), steps=steps).double()
    for seed in range(3):
        x, index = make_batch(10 + seed, seed=seed)
        check(layer, x.double(), index, tolerance=1e-9, gradients=steps == 3)
    assert bool(len(layer._replays)) == layer.solver.capturable


def test_recorded_solutions_train_the_same(layer):
    for seed in range(3):
        losses = []
        for one in (launched(layer), layer):
            one.zero_grad()
            with equipool.record(diagnostics=True) as solutions:
                y = one(*make_batch(seed=seed))
            (y.square().mean() + 0.1 * solutions.aux_loss).backward()
            losses.append([solutions.aux_loss, *(p.grad for p in one.parameters())])
        assert_same(*losses)


def test_a_second_gradient_is_refused_with_advice(layer):
    x, index = make_batch()
    y = layer(x.requires_grad_(), index)
    with pytest.raises(RuntimeError, match="cuda_graphs=False"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


def test_each_random_number_of_steps_has_its_graph():
    layer = make_layer(steps=RandomSteps(1, 4), differentiation=Truncated(2))
    for seed in range(20):
        found = []
        for one in (layer, launched(layer)):
            torch.manual_seed(seed)
            found.append(outcome(one, *make_batch(seed=seed)))
        assert_same(*found)
    assert len(layer._replays) == 3


@pytest.mark.gpu
def test_modes(layer):
    batch = make_batch()
    for short, tolerance in ((False, 1e-4), (True, 0.05)):
        for _ in range(2):
            with torch.autocast("cuda", torch.bfloat16, enabled=short):
                check(layer, *batch, tolerance=tolerance)
                with torch.inference_mode():
                    assert_same([layer(*batch)], [launched(layer)(*batch)], tolerance)
    layer.bfloat16()
    for _ in range(3):
        check(layer, batch[0].bfloat16(), batch[1], tolerance=0.05)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node")  # torch notices the threads
def test_several_threads_and_streams(layer):
    batches = [make_batch(200 + seed, 8, seed) for seed in range(4)]
    expected = [outcome(launched(layer), *batch) for batch in batches]
    torch.cuda.synchronize()

    def work(batch):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(5):
                found = outcome(layer, *batch)
            torch.cuda.current_stream().synchronize()
        return found

    with ThreadPoolExecutor(4) as threads:
        for found, wanted in zip(threads.map(work, batches), expected, strict=True):
            assert_same(found, wanted)
    for batch, wanted in zip(batches, expected, strict=True):
        with torch.cuda.stream(torch.cuda.Stream()):
            found = outcome(layer, *batch)
        torch.cuda.synchronize()
        assert_same(found, wanted)


@pytest.mark.gpu
def test_inside_a_capture(layer):
    x, index = make_batch()
    expected = launched(layer)(x, index).detach()
    step = equipool.cuda.capture_step(lambda: layer(x, index, dim_size=3).detach())
    assert_same([step()], [expected])


def test_random_starts_are_launched_in_training_and_replayed_in_evaluation():
    layer = make_layer(start=NormalStart(4))
    ys = [layer(*make_batch()).detach() for _ in range(4)]
    assert len(layer._replays) == 0
    assert not any(torch.equal(ys[0], y) for y in ys[1:])
    layer.eval()
    with torch.no_grad():
        ys = [layer(*make_batch()).clone() for _ in range(4)]
    assert len(layer._replays) == 1
    assert_same(ys[1:], [ys[0]] * 3)
