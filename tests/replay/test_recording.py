"""What is recorded, and when it may be replayed."""

import copy
import gc
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor

import fake_cuda_graphs
import pytest
import torch
from replay_cases import (
    DEVICE,
    ON_GPU,
    assert_same,
    launched,
    make_batch,
    make_layer,
    outcome,
    warm_up,
)
from torch import nn

from equipool import (
    EquilibriumAggregation,
    Implicit,
    Newton,
    ResNetPotential,
    ToTolerance,
    Truncated,
)
from equipool.differentiation import Differentiation
from equipool.replay import graphs, replays
from equipool.replay.capacity import LEAST_WASTE, Capacity, capacity_for
from equipool.replay.graphs import SolveGraph


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node")  # torch notices the thread
def test_a_run_of_another_thread_right_after_the_forward_is_noticed_in_the_backward(
    layer, monkeypatch
):
    """The other run happens as soon as the first has released the memory."""
    own, other, run = make_batch(seed=5), make_batch(seed=6), SolveGraph.run
    expected = outcome(launched(layer), *own)

    def interleaved(self, *batch):
        found = run(self, *batch)
        monkeypatch.setattr(SolveGraph, "run", run)
        with ThreadPoolExecutor(1) as thread:
            thread.submit(outcome, layer, *other).result()
        return found

    monkeypatch.setattr(SolveGraph, "run", interleaved)
    assert_same(outcome(layer, *own), expected)


def replicate(module):
    """What `nn.DataParallel` makes of a module: tensors with a graph, which are not registered."""
    replica = module._replicate_for_data_parallel()
    for name, child in module._modules.items():
        replica._modules[name] = None if child is None else replicate(child)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            setattr(replica, name, parameter * 1)
    replica._buffers = {name: b.clone() for name, b in module._buffers.items() if b is not None}
    return replica


@pytest.mark.parametrize("recorded", [True, False])
def test_replicas_of_data_parallel_are_launched(recorded):
    layer = warm_up(make_layer()) if recorded else make_layer()
    for seed in range(4):
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.add_(0.1)
        batch = make_batch(seed=seed)
        expected = outcome(launched(layer), *batch)
        assert_same(outcome(replicate(layer), *batch, of=layer), expected)
        with torch.no_grad():
            assert_same([replicate(layer)(*batch)], expected[:1])
    assert_same(outcome(layer, *batch), expected)


def test_a_shallow_copy_does_not_use_the_graphs_of_its_origin(layer):
    twin = copy.copy(layer)
    twin.potential = copy.deepcopy(layer.potential)
    nn.init.ones_(twin.potential.linears[0].weight)
    batch = make_batch()
    assert_same([twin(*batch)], [launched(twin)(*batch)])
    assert len(layer._replays) == 2


class LastFew(Differentiation):
    count = 1

    def __call__(self, search):
        return Truncated(self.count)(search)


class OwnLayer(EquilibriumAggregation):
    def _search(self, *args, **kwargs):
        return super()._search(*args, **kwargs)


FOREIGN = {
    "differentiation": lambda: make_layer(differentiation=LastFew()),
    "layer": lambda: OwnLayer(3, 4).to(DEVICE),
}


@pytest.mark.parametrize("make", FOREIGN.values(), ids=FOREIGN)
def test_what_may_do_anything_is_never_recorded(make):
    assert len(warm_up(make())._replays) == 0


def test_hooks_of_all_modules_are_launched(layer):
    calls = []
    hook = nn.modules.module.register_module_forward_hook(lambda *_: calls.append(1))
    try:
        for _ in range(3):
            calls.clear()
            with torch.no_grad():
                layer(*make_batch())
            assert len(calls) > 1
    finally:
        hook.remove()


def sizes(layer, *numbers):
    with torch.no_grad():
        for number in numbers:
            layer(*make_batch(number))


def test_each_kind_has_graphs_of_its_own_and_the_least_recently_used_goes_first(monkeypatch):
    monkeypatch.setattr(replays, "MOST_GRAPHS", 2)
    layer = make_layer()
    for num_steps in (1, 2, 3):
        layer.steps = num_steps
        sizes(layer, 10, 10, 1000)
    assert len(layer._replays) == 6
    sizes(layer, 10, 10, 5000)  # in place of the one for 1000
    recorded = []
    monkeypatch.setattr(
        replays, "SolveGraph", lambda *args: recorded.append(args) or SolveGraph(*args)
    )
    sizes(layer, 10, 5000)
    assert (len(layer._replays), len(recorded)) == (6, 0)


def test_sizes_that_never_repeat_are_launched_rather_than_recorded_each_time(monkeypatch):
    recorded = []
    monkeypatch.setattr(
        replays, "SolveGraph", lambda *args: recorded.append(args) or SolveGraph(*args)
    )
    monkeypatch.setattr(replays, "MOST_GRAPHS", 2)
    layer = make_layer()
    sizes(layer, 10, *(10 * 2**n for n in range(10)))
    assert len(recorded) == 2


def test_running_out_of_memory_once_does_not_end_recording(monkeypatch):
    layer, fails = make_layer(), [True]

    def record(*args):
        if fails.pop():
            raise torch.OutOfMemoryError("CUDA out of memory")
        return SolveGraph(*args)

    monkeypatch.setattr(replays, "SolveGraph", record)
    monkeypatch.setattr(replays, "PAUSE", 2)
    with torch.no_grad():
        for _ in range(3):
            layer(*make_batch())
        assert len(layer._replays) == 0
        fails.append(False)
        for _ in range(3):
            layer(*make_batch())
    assert len(layer._replays) == 1


def test_what_cannot_be_recorded_is_launched_with_one_warning(monkeypatch):
    def record(*args):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(replays, "SolveGraph", record)
    layer = make_layer()
    layer(*make_batch())
    with pytest.warns(UserWarning, match="not permitted"):
        layer(*make_batch())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(*make_batch())


@pytest.mark.skipif(ON_GPU, reason="counts the events of the emulation")
def test_the_next_thread_waits_for_a_run_that_failed(layer, monkeypatch):
    def fail(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(graphs.PaddedBatch, "fill", fail)
    before = fake_cuda_graphs.Event.recorded
    with torch.no_grad(), pytest.raises(RuntimeError, match="out of memory"):
        layer(*make_batch())
    assert fake_cuda_graphs.Event.recorded == before + 1


@pytest.mark.parametrize("steps", [3, ToTolerance(0.1, max_steps=40)], ids=["fixed", "tolerance"])
def test_sets_that_are_not_finite_are_not_searched(steps):
    layer = make_layer(steps=steps)
    x, index = make_batch()
    with torch.no_grad():
        for _ in range(2):
            layer.solve(x, index)
        x[0] = torch.nan
        found, expected = (one.solve(x, index) for one in (layer, launched(layer)))
    assert len(layer._replays) == 1
    for name in ("y", "energy"):
        assert_same([getattr(found, name)[1:]], [getattr(expected, name)[1:]], 1e-3)
    assert_same([found.aux_loss], [expected.aux_loss])
    assert torch.equal(found.converged, expected.converged)
    assert found.y[0].isnan().all()
    assert (found.num_steps - expected.num_steps).abs().max() <= 1  # rounding may decide


@pytest.mark.parametrize(
    ("settings", "trained", "evaluated"),
    [
        ({"differentiation": Implicit()}, 1, 1),
        ({"solver": Newton()}, 0, 0),
        ({"potential": ResNetPotential(3, 4, (8, 4), factored=ON_GPU, dropout=0.1)}, 0, 1),
    ],
    ids=["implicit", "newton", "dropout"],
)
def test_what_is_another_program_at_each_call_is_not_recorded(settings, trained, evaluated):
    """In training, where `Implicit` is recorded without gradients alone, and in evaluation."""
    assert len(warm_up(make_layer(**settings))._replays) == trained
    layer = make_layer(**settings).eval()
    with torch.no_grad():
        for _ in range(3):
            layer(*make_batch())
    assert len(layer._replays) == evaluated


def test_both_names_of_a_precision_are_understood(layer):
    products = torch.backends.cuda.matmul
    if not hasattr(products, "fp32_precision"):
        pytest.skip("this torch has one name")
    before = products.fp32_precision
    try:
        products.fp32_precision = "tf32"
        warm_up(layer)
        assert len(layer._replays) == 4  # two with each precision
    finally:
        products.fp32_precision = before


def test_graphs_go_with_their_layer_at_once():
    """Their memory must not wait for a collection of garbage."""
    layer = make_layer(steps=ToTolerance(0.1, max_steps=40))
    with torch.no_grad():
        for _ in range(3):
            layer(*make_batch())
    gone = [weakref.ref(layer), *(weakref.ref(g) for g in graphs_of(layer))]
    assert len(gone) == 2
    gc.collect()
    gc.disable()
    try:
        del layer
        assert [one() for one in gone] == [None, None]
    finally:
        gc.enable()


def graphs_of(layer):
    return [graph for kind in layer._replays._kinds.values() for graph in kind.values()]


@pytest.mark.parametrize("elements", [1, 200, 6656, 53_000, 10**6])
def test_capacities_hold_similar_batches(elements):
    need = Capacity(elements, max(1, elements // 26))
    capacity = capacity_for(need)
    assert capacity.holds(need, LEAST_WASTE)
    assert not capacity.holds(Capacity(capacity.elements + 1, need.sets), LEAST_WASTE)
    assert capacity.elements <= 85 or not capacity.holds(
        Capacity(capacity.elements // 4, need.sets), LEAST_WASTE
    )
