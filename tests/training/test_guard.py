"""Which steps are skipped, against the same rule in plain numbers; the kernel against both."""

import math
from functools import partial

import pytest
import torch

from equipool.training import optimizer as guard_module
from equipool.training.optimizer import Guard, History

CPU = torch.device("cpu")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ODD = {3: math.nan, 7: math.inf, 60: 0.0, 150: 1e4, 160: math.nan, 170: 1e25, 180: 3e38, 190: 0.0}


@pytest.fixture
def fused(monkeypatch):
    """The kernel on a GPU where there is one, in Triton's interpreter elsewhere."""
    pytest.importorskip("triton")
    monkeypatch.setattr(guard_module, "kernels_serve", lambda x: True)


@pytest.fixture
def plain(monkeypatch):
    monkeypatch.setattr(guard_module, "kernels_serve", lambda x: False)


def make(factor=10.0, clip_norm=1.0, num_metrics=0, length=5, device=DEVICE):
    columns = ["loss", "aux_loss", "gradient_norm", "skipped", *map(str, range(num_metrics))]
    return Guard(factor, clip_norm, History(columns, length, device))


def judge(guard, norms):
    return [guard.judge(torch.tensor(norm)).item() for norm in norms]


def naive(factor, norms):
    """The rule over the whole past, again for each step: skip what is not finite, or more than
    factor times the average of the finite norms before it where there are a hundred."""
    past, skipped = [], []  # finite norms, cut where they were too long
    for norm in norms:
        average = mean(past)
        trusted = len(past) >= 100 and average > 0
        limit = factor * average if trusted else math.inf
        skipped.append(float(not math.isfinite(norm) or norm > limit))
        if math.isfinite(norm):
            past.append(min(norm, limit))
    return mean(past), skipped


def mean(past):
    """The plain mean of the first hundred, which each later one moves by a hundredth."""
    if not past:
        return 0.0
    first, later = past[:100], past[100:]
    kept = 0.99 ** len(later)
    tail = sum(0.01 * 0.99**age * norm for age, norm in enumerate(reversed(later)))
    return kept * sum(first) / len(first) + tail


def drawn_norms():
    norms = torch.randn(400).exp().tolist()
    for step, norm in ((3, math.nan), (150, math.inf), (200, 1e4), (201, math.nan), (300, 300.0)):
        norms[step] = norm
    return norms


@pytest.mark.parametrize(
    "norms",
    [
        drawn_norms(),
        *([start] * 150 + [1.0] * 300 + [1e4, 1.0] for start in (math.nan, math.inf, 0.0)),
        [1.0] * 60 + [math.nan] * 60 + [1e3] + [1.0] * 39 + [1e3],
    ],
    ids=["drawn", "after NaN", "after inf", "after zeros", "NaN in the first hundred"],
)
def test_it_is_the_rule(norms):
    guard = make(10.0, device=CPU)
    average, expected = naive(10.0, norms)
    assert judge(guard, norms) == expected
    assert guard.average.item() == pytest.approx(average, rel=1e-4)
    assert 0 < sum(expected) < len(norms)


@pytest.mark.parametrize(
    ("factor", "norms", "last"),
    [
        (None, [1.0] * 200 + [1e30, math.inf, math.nan, 1.0], [0, 1, 1, 0]),
        (2.0, [1.0, 100.0, 1.0, 1e6], [0, 0, 0, 0]),  # the average has not settled
        (10.0, [1.0] * 150 + [1000.0], [0, 1]),
        (10.0, [1.0] * 150 + [1000.0] * 150, [0] * 50),  # they have grown for good
        (10.0, [0.0] * 150 + [1.0], [0, 0]),  # no lock-up after a start without gradients
        (10.0, [1e38] * 120 + [math.inf], [1]),
    ],
)
def test_the_last_are_skipped_or_not(factor, norms, last):
    assert judge(make(factor, device=CPU), norms)[-len(last) :] == last


def test_its_state_goes_on_where_it_was():
    norms = [1.0] * 90 + [math.nan] * 5 + [2.0] * 15 + [5.0, 50.0]
    whole, first, second = make(10.0, device=CPU), make(10.0, device=CPU), make(10.0, device=CPU)
    judge(whole, norms)
    judge(first, norms[:97])
    for name, value in second.tensors().items():
        value.copy_(first.tensors()[name])
    judge(second, norms[97:])
    for name, value in second.tensors().items():
        assert torch.equal(value, whole.tensors()[name]), name


def random_norms(num_steps, num_parameters, dtype):
    """Norms about one, which grow for good at step 200, and single ones that are odd."""
    generator = torch.Generator().manual_seed(0)
    norms = torch.randn(num_steps, num_parameters, generator=generator).exp()
    norms[200:] *= 30
    for step, norm in ODD.items():
        norms[step] = 0.0
        norms[step, -1] = norm
    return norms.to(DEVICE, dtype)


def follow(guard, norms, dtypes=(torch.float32, torch.float32)):
    """All that it gives and all its state, step after step."""
    seen = []
    for step, row in enumerate(norms):
        values = [
            torch.tensor(step + k, device=DEVICE).to(dtype).requires_grad_(dtype.is_floating_point)
            for k, dtype in enumerate(dtypes)
        ]
        skipped, divisor = guard(row, values[:2], values[2:])
        assert skipped.dtype == torch.float32
        assert skipped.shape == ()
        if divisor is None:
            divisor = torch.ones_like(skipped)
        used = divisor.masked_fill(skipped > 0, 0)  # of a step that is skipped it may be anything
        history = guard.history
        state = (skipped, used, guard.average, guard.count, history.rows, history.counter)
        seen.append([value.clone() for value in state])
    return [torch.stack(column).cpu() for column in zip(*seen, strict=True)]


def assert_agree(found, expected):
    names = ("skipped", "divisor", "average", "count", "rows", "counter")
    for name, one, other in zip(names, found, expected, strict=True):
        assert one.dtype == other.dtype, name
        exact = name in ("skipped", "count", "counter")
        tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-5, "atol": 0}
        torch.testing.assert_close(one, other, **tolerance, equal_nan=True, msg=name)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter, where it overflows
@pytest.mark.parametrize(
    ("factor", "clip_norm", "num_parameters", "dtypes", "dtype"),
    [
        (10.0, 1.0, 1, (), torch.float32),
        (10.0, 3.0, 7, (torch.float64, torch.bfloat16, torch.int64, torch.bool), torch.bfloat16),
        (10.0, None, 300, (torch.float32,), torch.float32),
        (None, 3.0, 7, (), torch.bfloat16),
        (None, None, 7, (), torch.float32),
    ],
)
def test_the_kernel_agrees(request, factor, clip_norm, num_parameters, dtypes, dtype):
    norms = random_norms(300, num_parameters, dtype)
    dtypes = (torch.float32, torch.float32, *dtypes)
    given = {"factor": factor, "clip_norm": clip_norm, "num_metrics": len(dtypes) - 2}
    request.getfixturevalue("plain")
    expected = follow(make(**given), norms, dtypes)
    request.getfixturevalue("fused")
    assert_agree(follow(make(**given), norms, dtypes), expected)
    num_skipped = expected[0].sum()
    assert num_skipped == 3 if factor is None else 5 < num_skipped < 60


@pytest.mark.parametrize(
    ("numbers", "skipped"),
    [([0.0] * 120 + [1.0], 0), ([1.0] * 99 + [1e3], 0), ([1.0] * 100 + [1e3], 1)],
)
def test_the_kernel_trusts_an_average_when_the_guard_does(fused, numbers, skipped):
    assert follow(make(), torch.tensor(numbers, device=DEVICE)[:, None])[0].sum() == skipped


@pytest.mark.parametrize("path", ["plain", "fused"])
def test_what_it_gives_and_writes(request, path):
    request.getfixturevalue(path)
    guard = make(clip_norm=2.0, num_metrics=1, length=2)
    values = [torch.tensor(value, device=DEVICE) for value in (5.0, 6.0, 7.0)]
    for numbers in ([3.0, 4.0], [0.6, 0.8], [3.0, math.nan]):
        norms = torch.tensor(numbers, device=DEVICE)
        skipped, divisor = guard(norms, values[:2], values[2:])
        norm = math.hypot(*numbers)
        assert skipped.item() == math.isnan(norm)
        if not skipped:
            assert divisor.item() == pytest.approx(max(1, norm / 2), rel=1e-5)
    assert guard.history.counter.tolist() == [3]
    torch.testing.assert_close(
        guard.history.rows.cpu(),
        torch.tensor([[5.0, 6.0, math.nan, 1.0, 7.0], [5.0, 6.0, 1.0, 0.0, 7.0]]),
        equal_nan=True,
    )


def test_the_default_dtype_is_not_read(fused, request):
    guard = make(clip_norm=1.0)
    values = [torch.ones((), device=DEVICE)] * 2
    norms = torch.full((1,), 1000.3, device=DEVICE)
    request.addfinalizer(partial(torch.set_default_dtype, torch.get_default_dtype()))
    torch.set_default_dtype(torch.bfloat16)
    skipped, divisor = guard(norms, values, [])
    assert skipped.dtype == divisor.dtype == torch.float32
    assert divisor.item() == pytest.approx(1000.3, rel=1e-6)


def test_float64_is_divided_in_float64():
    guard = make(device=torch.device("cpu"))
    values = [torch.tensor(1.0, dtype=torch.float64)] * 2
    _, divisor = guard(torch.tensor([1.0, math.pi], dtype=torch.float64), values, [])
    assert divisor.item() == pytest.approx(math.hypot(1, math.pi) + 1e-6, rel=1e-14)
