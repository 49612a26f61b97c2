"""The exact statistics: against torch, in every layout, with weights."""

import pytest
import torch

from equipool import Sets, functional

COUNTS = torch.tensor([5, 1, 8, 30])
INDEX = torch.arange(4).repeat_interleave(COUNTS)
X = torch.randn(44, 3, generator=torch.Generator().manual_seed(0))
LEVELS = [0.1, 0.5, 0.93, 1.0]
FUNCTIONS = {
    "median": (functional.median, lambda own: own.median(0).values),
    "quantile": (
        lambda x, *a, **k: functional.quantile(x, LEVELS, *a, **k),
        lambda own: torch.quantile(own, torch.tensor(LEVELS, dtype=own.dtype), dim=0),
    ),
    "one level": (
        lambda x, *a, **k: functional.quantile(x, 0.3, *a, **k),
        lambda own: torch.quantile(own, 0.3, dim=0),
    ),
    "max": (functional.max, lambda own: own.max(0).values),
    "mean": (functional.mean, lambda own: own.mean(0)),
}
each = pytest.mark.parametrize(("function", "expected"), FUNCTIONS.values(), ids=FUNCTIONS)


@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_torch(function, expected, dtype):
    found = function(X.to(dtype), INDEX)
    reference = torch.stack([expected(own) for own in X.to(dtype).split(COUNTS.tolist())])
    if function is functional.mean:
        assert torch.allclose(found, reference, atol=1e-6)
    else:
        assert torch.equal(found, reference)


@each
@pytest.mark.parametrize("weighted", [False, True])
def test_layouts_agree(function, expected, weighted):
    weight = torch.rand(44, generator=torch.Generator().manual_seed(1)) if weighted else None
    y = function(X, INDEX, weight=weight)
    order = torch.randperm(44)
    shuffled = None if weight is None else weight[order]
    shuffle = function(X[order], INDEX[order], weight=shuffled)
    assert torch.allclose(shuffle, y, rtol=0, atol=3e-7 if function is functional.mean else 0)
    ptr = torch.nn.functional.pad(COUNTS.cumsum(0), (1, 0))
    assert torch.equal(function(X, ptr=ptr, weight=weight), y)
    assert torch.equal(function(X, Sets.from_index(INDEX), weight=weight), y)
    mask = torch.arange(30) < COUNTS[:, None]
    padded, weights = torch.full((4, 30, 3), torch.nan), torch.ones(4, 30)
    padded[mask] = X
    if weight is not None:
        weights[mask] = weight
    weights = None if weight is None else weights
    assert torch.equal(function(padded, mask=mask, weight=weights), y)


@each
def test_empty_sets_give_zero(function, expected):
    y = function(X, INDEX + 1, dim_size=6)
    assert (y[[0, 5]] == 0).all()
    weight = (INDEX != 2).float()
    assert (function(X, INDEX, weight=weight)[2] == 0).all()


@pytest.mark.parametrize("name", ["median", "max", "mean"])
def test_a_weight_counts_copies(name):
    times = torch.randint(1, 4, (44,), generator=torch.Generator().manual_seed(2))
    function = getattr(functional, name)
    copied = function(X.repeat_interleave(times, 0), INDEX.repeat_interleave(times))
    assert torch.allclose(function(X, INDEX, weight=times.float()), copied, atol=1e-6)
    zeros = torch.where(INDEX.bincount()[INDEX] > 1, X[:, 0] > X[:, 1], True).float()
    kept = zeros > 0
    alone = function(X[kept], INDEX[kept], dim_size=4)
    assert torch.allclose(function(X, INDEX, weight=zeros, dim_size=4), alone, atol=1e-6)


@pytest.mark.parametrize("name", ["median", "max", "mean", "expectile", "quantile"])
def test_gradients(name):
    level = {"expectile": (0.8,), "quantile": ([0.2, 0.7],)}.get(name, ())
    x, weight = X.double()[:14].requires_grad_(), torch.rand(14, dtype=torch.float64) + 0.1

    def function(x):
        return getattr(functional, name)(x, *level, INDEX[:14], weight=weight)

    assert torch.autograd.gradcheck(function, x)


def test_expectiles_are_stationary():
    y = functional.expectile(X, 0.8, INDEX)
    u = X - y[INDEX]
    slope = torch.zeros(4, 3).index_add(0, INDEX, torch.where(u > 0, 0.8, 0.2) * u)
    assert slope.abs().max() < 1e-5


def test_levels_outside_of_0_and_1_are_refused():
    with pytest.raises(ValueError, match="expected levels from 0 to 1"):
        functional.quantile(X, 1.5)
