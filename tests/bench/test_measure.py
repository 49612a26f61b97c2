"""Every path becomes a row: a timing, or the reason why there is none."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from rich.console import Console

from equipool.baselines import AGGREGATIONS
from equipool.bench import measure
from equipool.bench.agreement import Judge
from equipool.bench.cases import Budget, Case, Item, Preset, make_batch
from equipool.bench.paths import PATHS, RIVALS, Readout, UnavailableError
from equipool.bench.record import Rates
from equipool.bench.steps import make_step, random_bonds
from equipool.experiments.median.network import MedianNetwork

CPU = torch.device("cpu")
CASE = Case(sets=3, elements=5, in_channels=4, out_channels=4, hidden=(6, 5, 3), num_steps=2)
MEDIAN = replace(CASE, workload="median", in_channels=1, varied=False)
PRESET = Preset("tests", "sets", (), (), Budget(seconds=0.0, repeats=2, warmup=0))
EAGER = ("pyg", "reference", "equipool-autograd", "equipool", *RIVALS)


@pytest.fixture(autouse=True)
def _known_rates(monkeypatch):
    monkeypatch.setattr(measure, "measure_rates", lambda p, device: Rates(p, 1.0, 1.0, 1.0))


def rows(*items: Item, device=CPU):
    console = Console(quiet=True)
    return measure.run_preset(PRESET, list(items), device, "command", "commit", console).rows


def workload_case(workload):
    return MEDIAN if workload == "median" else replace(CASE, workload=workload)


@pytest.mark.parametrize(
    ("path", "mode"),
    [*((path, "training") for path in EAGER), ("equipool", "inference"), ("pyg", "inference")],
)
def test_every_path_is_timed(path, mode):
    (row,) = rows(Item(CASE, path, "float32", mode))
    assert (row.status, row.reason) == ("timed", "")
    assert row.timing.repeats == (2 if PATHS[path].fixed_sizes else 8)
    assert row.peak_bytes > 0
    assert (row.agreement is not None) == (row.floor is not None) == PATHS[path].equilibrium


@pytest.mark.parametrize("workload", ["gin", "median"])
@pytest.mark.parametrize("path", ["sum", "pyg", "equipool"])
def test_networks_are_timed_as_a_whole(workload, path):
    (row,) = rows(Item(workload_case(workload), path, "float32", "training"))
    assert (row.status, row.reason) == ("timed", "")


@pytest.mark.parametrize("workload", ["gin", "median"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_network_step_trains(workload, precision):
    case = workload_case(workload)
    batch = make_batch(case, CPU)
    step = make_step(case, batch, PATHS["equipool"], "training", precision)
    for group in step.optimizer.param_groups:
        group["lr"] = 1e-2

    def loss():
        return step.network.loss(batch, *step.inputs(batch)).item()

    before = loss()
    for _ in range(10):
        step()
    assert loss() < before
    assert all(p.grad is not None for p in step.network.parameters())


def test_pooling_without_a_network_gets_one():
    case = replace(MEDIAN, hidden=(6, 6, 1))
    step = make_step(case, make_batch(case, CPU), PATHS["sum"], "training", "float32")
    embedding = step.network.network.embedding
    assert [linear.out_features for linear in embedding.linears] == [6, 6, case.out_channels]


def test_the_median_network_is_the_experiments():
    batch = make_batch(MEDIAN, CPU)
    network = make_step(MEDIAN, batch, PATHS["equipool"], "training", "float32").network
    numbers, target = network.inputs(batch)
    torch.testing.assert_close(target, numbers.quantile(0.5, dim=-1))
    head, layer = network.network, PATHS["equipool"].build(MEDIAN).module
    own = MedianNetwork(head.embedding, layer, MEDIAN.out_channels)
    own.head = head.head
    expected = (own(numbers) - target).square().mean()
    torch.testing.assert_close(network.loss(batch, numbers, target), expected)


@pytest.mark.parametrize("workload", ["layer", "gin"])
@pytest.mark.parametrize("path", ["equipool", "pyg"])
def test_the_plain_call_meets_other_sizes_at_every_step(workload, path, monkeypatch):
    seen = []
    build = PATHS[path].build

    def spied(case):
        readout = build(case)

        def call(module, x, batch):
            seen.append((x.shape[0], batch.sizes))
            return readout.call(module, x, batch)

        return Readout(readout.module, call)

    monkeypatch.setitem(PATHS, path, replace(PATHS[path], build=spied))
    (row,) = rows(Item(replace(CASE, workload=workload), path, "float32", "training"))
    assert (row.status, row.batches, row.timing.repeats) == ("timed", measure.BATCHES, 8)
    assert len(set(seen[-8:])) == 8
    assert all(elements == sum(sizes) for elements, sizes in seen)


def test_the_plain_call_is_an_index_and_nothing_else():
    calls = []
    batch = make_batch(CASE, CPU)
    for name in ("equipool", "pyg", "sum"):
        readout = PATHS[name].build(CASE)
        readout.call(lambda *args, **more: calls.append((args[1:], more)), batch.x, batch)
    assert calls == [((batch.index,), {})] * 3


def test_gradients_are_those_of_the_latest_batch():
    step = make_step(CASE, make_batch(CASE, CPU), PATHS["equipool"], "training", "float32")
    step.add(make_batch(CASE, CPU, seed=1))
    step()
    first = step.parameter_gradients()
    step()
    alone = make_step(CASE, make_batch(CASE, CPU, 1), PATHS["equipool"], "training", "float32")
    alone()
    torch.testing.assert_close(step.parameter_gradients(), alone.parameter_gradients())
    torch.testing.assert_close(step.x.grad, alone.x.grad)
    assert any(not torch.equal(first[n], g) for n, g in alone.parameter_gradients().items())


def test_bonds_stay_within_a_molecule():
    sizes = (3, 30)
    edges = random_bonds(sizes, torch.Generator().manual_seed(0))
    assert torch.equal(edges[0] < 3, edges[1] < 3)
    assert edges.max() < 33
    assert edges.shape[1] == 2 * (3 + 32)


@pytest.mark.parametrize(
    ("path", "precision", "case", "reason"),
    [
        ("equipool-torch", "float32", CASE, "CUDA"),
        ("equipool-captured", "float32", CASE, "CUDA"),
        ("equipool", "tf32", CASE, "CUDA"),
        ("reference", "float32", replace(CASE, sets=1000), "at most 32 sets"),
        ("equipool-autograd", "float32", replace(CASE, elements=10**12), "GiB"),
        ("set-transformer", "float32", replace(CASE, elements=10**6), "GiB"),
    ],
)
def test_what_cannot_run_here_is_refused_with_the_reason(path, precision, case, reason):
    with pytest.raises(UnavailableError, match=reason):
        PATHS[path].check(case, precision, CPU)
    PATHS["equipool"].check(case, "float32", CPU)


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (torch.OutOfMemoryError("too much\nand more"), "out of memory", "too much"),
        (RuntimeError("[enforce fail] can't allocate memory: 8"), "out of memory", "allocate"),
        (KeyError("gone"), "failed", "KeyError: 'gone'"),
        (ImportError("needs a package"), "unavailable", "needs a package"),
        (UnavailableError("needs a card"), "unavailable", "needs a card"),
    ],
)
def test_a_failure_is_a_row_and_the_run_goes_on(error, status, reason, monkeypatch):
    def call(module, x, batch):
        raise error

    broken = replace(PATHS["sum"], build=lambda case: Readout(torch.nn.Linear(1, 1), call))
    monkeypatch.setitem(PATHS, "sum", broken)
    found, after = rows(*(Item(CASE, path, "float32", "training") for path in ("sum", "mean")))
    assert found.status == status
    assert reason in found.reason
    assert "more" not in found.reason
    assert after.status == "timed"


def test_each_case_has_a_judge_of_its_own(monkeypatch):
    judged = []
    original = Judge.__init__

    def spy(self, case, device):
        judged.append(case)
        original(self, case, device)

    monkeypatch.setattr(Judge, "__init__", spy)
    other = replace(CASE, sets=2)
    rows(*(Item(case, "sum", "float32", mode) for case in (CASE, other)
           for mode in ("inference", "training")))  # fmt: skip
    assert judged == [CASE, other]


def test_rivals_are_the_baselines():
    assert set(RIVALS) == set(AGGREGATIONS) - {"equilibrium"}
    batch = make_batch(CASE, CPU)
    expected = torch.stack([part.sum(0) for part in batch.x.split(list(batch.sizes))])
    torch.testing.assert_close(PATHS["sum"].build(CASE)(batch.x, batch), expected)


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # torch's own
def test_the_compiled_layer_agrees_and_is_timed(monkeypatch):
    # What the compiler makes of the layer is tested elsewhere; here, that it takes it whole.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    (row,) = rows(Item(CASE, "equipool-compiled", "float32", "training"))
    assert (row.status, row.reason) == ("timed", "")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize(
    "path", ["equipool", "equipool-torch", "equipool-captured", "sum-captured"]
)
@pytest.mark.parametrize("workload", ["layer", "gin", "median"])
def test_paths_of_the_device(workload, path, precision):
    # wide, so that rounding averages out
    width = 1 if workload == "median" else 32
    case = Case(8, 12, width, 32, (64, 32, 32), 4, varied=width > 1, workload=workload)
    (row,) = rows(Item(case, path, precision, "training"), device=torch.device("cuda"))
    assert (row.status, row.reason) == ("timed", "")
