"""The location solver: against mpmath, against itself in float64, alone and in a batch."""

import multiprocessing
import threading

import mpmath
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from equipool.ops import location
from equipool.ops.execution import kernels
from equipool.ops.location import locate

NORMAL = torch.randn(50, generator=torch.Generator().manual_seed(0)).tolist()
HOSTILE = [
    ([0.0, 1.0, 101.0, 103.0], 0.5, 1e-3),  # flat between the middle elements
    ([0.0, 1e6], 0.5, 0.1),
    ([0.0, 1.0, 1.5, 2.0], 0.5, 1e-3),
    ([0.0, 50.0, 51.0, 52.0], 0.25, 0.02),
    ([2.0 * k for k in range(10)], 0.3, 1e-3),
    ([2.0 * k for k in range(50)], 0.1, 1e-3),
    ([*NORMAL, 1e6], 0.5, 1e-2),  # an outlier
    ([*NORMAL, 1e6], 0.9, 1e-2),
    ([*NORMAL, -1e6, 1e6], 0.5, 1.0),
    ([1e-3 * v for v in NORMAL], 0.5, 1e-4),
    ([1e6 + k for k in range(9)], 0.5, 1e-2),
    ([7.0, 7.0, 7.0], 0.3, 0.1),  # ties
    ([7.0, 7.0, 7.0, 9.0], 0.3, 1e-3),
    ([-2.0], 0.9, 1.0),
    (NORMAL, 0.9975, 20.0),
    (NORMAL, 0.5, 1e3),
    (NORMAL, 0.02, 1e6),
]


@pytest.fixture(params=[True, False], ids=["numba", "torch"])
def fused(request):
    if request.param:
        pytest.importorskip("numba")
    with kernels(request.param):
        yield request.param


@pytest.fixture(params=["triton", "numba", "torch"])
def backend(request, monkeypatch):
    """Triton runs in its interpreter where there is no GPU."""
    if request.param != "torch":
        pytest.importorskip(request.param)
    monkeypatch.setattr(location, "kernels_serve", lambda x: request.param == "triton")
    with kernels(request.param == "numba"):
        yield request.param


def truth(values, tau, delta, ridge=0.0):
    """By bisection in 60 digits: the minimum, and the local scale `sum c / H`."""
    with mpmath.workdps(60):
        values, tau, delta = [mpmath.mpf(v) for v in values], mpmath.mpf(tau), mpmath.mpf(delta)
        low, high = min(*values, 0 if ridge else values[0], values[0]), max(*values, values[0])
        low, high = (min(low, 0), max(high, 0)) if ridge else (low, high)
        for _ in range(160):
            y = (low + high) / 2
            c = [tau if v > y else 1 - tau for v in values]
            s = [(v - y) / delta for v in values]
            slope = mpmath.fsum(a * b / mpmath.sqrt(1 + b * b) for a, b in zip(c, s, strict=True))
            low, high = (y, high) if slope > ridge * y else (low, y)
        bends = (a * (1 + b * b) ** mpmath.mpf(-1.5) for a, b in zip(c, s, strict=True))
        return float(y), float(mpmath.fsum(c) * delta / mpmath.fsum(bends))


def solve_one(values, tau, delta, **options):
    x = torch.tensor(values)[:, None].requires_grad_()
    parameters = [torch.full((1, 1), v, requires_grad=True) for v in (tau, delta)]
    index = torch.zeros(len(values), dtype=torch.long)
    return x, parameters, locate(x, index, torch.tensor([len(values)]), *parameters, **options)


@pytest.mark.parametrize(("values", "tau", "delta"), HOSTILE)
def test_hostile_sets_are_solved(backend, values, tau, delta):
    x, (tau, delta), located = solve_one(values, tau, delta)
    expected, local = truth(x.flatten().tolist(), tau.item(), delta.item())
    spread = max(values) - min(values)
    allowed = 1e-5 * min(spread, local) + 2e-7 * abs(expected)
    assert located.converged.all()
    assert abs(located.y.item() - expected) <= allowed
    by_x, by_tau, by_delta = torch.autograd.grad(located.y.sum(), (x, tau, delta))
    assert by_x.sum() == pytest.approx(1, abs=1e-5)
    assert by_tau.abs() <= 101 * max(spread, delta.item()) / min(tau.item(), 1 - tau.item())
    assert by_delta.isfinite()


@pytest.mark.parametrize(("values", "tau", "delta"), HOSTILE[:4] + HOSTILE[6:7])
def test_a_ridge_pulls_to_zero(backend, values, tau, delta):
    x, (tau, delta), located = solve_one(values, tau, delta, ridge=torch.full((1, 1, 1), 0.25))
    expected, _ = truth(x.flatten().tolist(), tau.item(), delta.item(), 0.25)
    assert located.converged.all()
    assert located.y.item() == pytest.approx(expected, rel=2e-6, abs=1e-5)


def batch(features=37, dtype=torch.float32, *, heads=None, least=0, sets=24):
    """Sets of 0 to 59 elements, one of 1, and parameters of three asymmetries."""
    generator = torch.Generator().manual_seed(1)
    counts = torch.randint(least, 60, (sets,), generator=generator)
    counts[3], counts[5] = least, 1
    index = torch.arange(sets).repeat_interleave(counts)

    def draw(*shape):
        return torch.rand(shape, generator=generator)

    x = torch.randn(len(index), features, generator=generator)
    given = {
        "x": x, "tau": 0.1 + 0.8 * draw(3, features), "delta": 0.1 + 2 * draw(3, features),
        "weight": None if heads is None else 0.1 + draw(len(index), heads),
    }  # fmt: skip
    given = {k: v if v is None else v.to(dtype).requires_grad_() for k, v in given.items()}
    return {"index": index, "counts": counts, **given}


@pytest.mark.parametrize(("heads", "ridged"), [(None, True), (3, False)])
def test_triton_agrees_with_float64(monkeypatch, heads, ridged):
    pytest.importorskip("triton")
    monkeypatch.setattr(location, "kernels_serve", lambda x: x.dtype == torch.float32)
    device, found = "cuda" if torch.cuda.is_available() else "cpu", []
    for dtype in (torch.float32, torch.float64):
        given = batch(5, dtype, heads=heads, sets=6)
        given["counts"][0] = 0  # as of a set that is not finite
        if ridged:
            given["ridge"] = torch.full((6, 3, 5), 0.3, dtype=dtype, requires_grad=True)
        inputs = [t for t in given.values() if t is not None and t.requires_grad]
        y = locate(**{k: t if t is None else t.to(device) for k, t in given.items()}).y
        found.append((y.cpu(), *torch.autograd.grad(y.square().sum(), inputs)))
    for short, long in zip(*found, strict=True):
        assert (short - long).norm() <= 1e-5 * long.norm()


@pytest.mark.parametrize("heads", [None, 1, 5, 37])
@pytest.mark.parametrize("ridge", [None, (24, 3, 37), (1, 1, 1)])
def test_gradients_agree_with_float64(fused, heads, ridge):
    found = []
    for dtype in (torch.float32, torch.float64):
        given = batch(dtype=dtype, heads=heads)
        if ridge is not None:
            given["ridge"] = torch.full(ridge, 0.3, dtype=dtype, requires_grad=True)
        y = locate(**given).y
        inputs = [t for t in given.values() if t is not None and t.requires_grad]
        by_y = torch.randn(y.shape, generator=torch.Generator().manual_seed(2)).to(dtype)
        found.append((y, *torch.autograd.grad(y, inputs, by_y)))
    for short, long in zip(*found, strict=True):
        assert short.dtype == torch.float32
        assert (short - long).abs().max() <= 1e-4 * long.abs().max()


def test_gradcheck_of_first_and_second_order():
    given = batch(2, torch.float64, heads=2, least=1)
    keep = given["index"] < 3
    index, counts = given["index"][keep], given["counts"][:3]
    ridge = torch.full((3, 1, 1), 0.2, dtype=torch.float64, requires_grad=True)
    inputs = [given["x"][keep], given["tau"], given["delta"], given["weight"][keep], ridge]
    inputs = [one.detach().clone().requires_grad_() for one in inputs]

    def function(x, tau, delta, weight, ridge):
        return locate(x, index, counts, tau, delta, weight, ridge).y

    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def test_float32_is_differentiated_twice(fused):
    given = batch(5)
    y = locate(**given).y
    (by_x,) = torch.autograd.grad(y.square().sum(), given["x"], create_graph=True)
    (twice,) = torch.autograd.grad(by_x.square().sum(), given["tau"])
    assert twice.isfinite().all()
    assert twice.abs().max() > 0


def test_a_set_alone_and_in_the_batch(fused):
    given = batch(heads=5)
    y = locate(**given).y
    for number in range(24):
        own = given["index"] == number
        alone = {
            **given, "x": given["x"][own], "weight": given["weight"][own],
            "index": torch.zeros(int(own.sum()), dtype=torch.long),
            "counts": own.sum().unsqueeze(0),
        }  # fmt: skip
        assert (locate(**alone).y - y[number]).abs().max() <= 1e-6


def test_weights_count_copies(fused):
    given = batch()
    times = torch.randint(0, 3, (len(given["index"]), 1))
    weighted = locate(**{**given, "weight": times.float()}).y
    copies = times[:, 0]
    index = given["index"].repeat_interleave(copies)
    counts = torch.bincount(index, minlength=24)
    x = given["x"].repeat_interleave(copies, 0)
    copied = locate(x, index, counts, given["tau"], given["delta"]).y
    assert torch.allclose(weighted, copied, atol=5e-6)


def test_a_set_that_is_not_finite_changes_no_other(fused):
    given = batch()
    first = given["index"].tolist().index
    given["x"].data[0, 0], given["x"].data[first(7), 1] = torch.nan, torch.inf
    clean = {**batch(), "counts": given["counts"].clone()}
    clean["counts"][[int(given["index"][0]), 7]] = 0
    others = clean["counts"] > 0
    found = []
    for one in (given, clean):
        y = locate(**one).y
        found.append((y[others], torch.autograd.grad(y[others].sum(), (one["x"], one["tau"]))))
    assert torch.equal(found[0][0], found[1][0])
    for bad, good in zip(*(gradients for _, gradients in found), strict=True):
        assert torch.allclose(bad, good, rtol=1e-5)
    assert locate(**given).y[7, :, 1].isnan().all()
    assert not locate(**given).converged[7]


def test_half_precision_is_computed_in_float32(fused):
    given = batch()
    short = locate(**{**given, "x": given["x"].bfloat16()}).y
    assert short.dtype == torch.float32
    assert torch.equal(short, locate(**{**given, "x": given["x"].bfloat16().float()}).y)


def test_one_long_set(fused):
    x = torch.randn(40_000, 3, generator=torch.Generator().manual_seed(0))
    tau, delta = torch.full((1, 3), 0.9), torch.full((1, 3), 0.05)
    zeros, counts = torch.zeros(40_000, dtype=torch.long), torch.tensor([40_000])
    y = locate(x, zeros, counts, tau, delta).y
    long = locate(x.double(), zeros, counts, tau, delta).y
    assert (y - long).abs().max() <= 1e-6


def test_threads_and_forks_agree():
    pytest.importorskip("numba")
    given, before = {k: v for k, v in batch(300).items() if v is not None}, torch.get_num_threads()
    given = {k: v.detach() for k, v in given.items()}
    alone = locate(**given).y
    try:
        torch.set_num_threads(3)
        found = [None, None]

        def call(number):
            torch.set_num_threads(3)
            found[number] = locate(**given).y

        threads = [threading.Thread(target=call, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(torch.equal(y, alone) for y in found)
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        child = context.Process(target=lambda: queue.put(locate(**given).y.numpy()))
        child.start()
        assert (queue.get() == alone.numpy()).all()
        child.join(60)
        assert child.exitcode == 0
    finally:
        torch.set_num_threads(before)


class NoFloat64(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for one in torch.utils._pytree.tree_leaves((args, found)):
            assert not (isinstance(one, torch.Tensor) and one.dtype == torch.float64), function
        return found


def test_devices_without_float64():
    given = batch(heads=5)
    with NoFloat64():
        locate(**given, ridge=torch.full((1, 1, 1), 0.3)).y.sum().backward()


def test_vmap_of_gradients():
    given = batch(2)

    def sum_of(x):
        return locate(**{**given, "x": x}).y.sum()

    several = torch.stack([given["x"].detach(), given["x"].detach() + 1])
    found = torch.func.vmap(torch.func.grad(sum_of))(several)
    assert torch.allclose(
        found[0], torch.autograd.grad(sum_of(given["x"]), given["x"])[0], atol=1e-4
    )


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compile_and_export():
    given = batch(2)
    expected = locate(**given).y

    class Pool(torch.nn.Module):
        def forward(self, x, index, counts, tau, delta):
            return locate(x, index, counts, tau, delta).y

    inputs = tuple(given[k].detach() for k in ("x", "index", "counts", "tau", "delta"))
    exported = torch.export.export(Pool(), inputs).module()
    assert torch.allclose(exported(*inputs), expected, atol=1e-5)
    compiled = torch.compile(Pool(), backend="aot_eager", fullgraph=True)
    x = given["x"].detach().requires_grad_()
    y = compiled(x, *inputs[1:])
    assert torch.allclose(y, expected, atol=1e-5)
    (by_x,) = torch.autograd.grad(y.sum(), x)
    assert torch.allclose(by_x, torch.autograd.grad(expected.sum(), given["x"])[0], atol=1e-4)
