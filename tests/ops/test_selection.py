"""Selection against torch's own, with and without numba."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipool.ops import selection
from equipool.ops.execution import kernels
from equipool.ops.selection import select

NUMBERS = st.sampled_from(
    [0.0, -0.0, 1.0, -1.0, 1e-42, 2.5, 3e38, torch.inf, -torch.inf, torch.nan]
)
SETS = st.lists(
    st.lists(st.one_of(NUMBERS, st.floats(width=32)), max_size=9), min_size=1, max_size=4
)


@pytest.fixture(params=[True, False], ids=["numba", "torch"], scope="module")
def fused(request):
    with kernels(request.param):
        yield request.param


def same(found, expected):
    """Whether all numbers are equal, NaN included; zeros of either sign are."""
    return torch.equal(torch.nan_to_num(found, 7), torch.nan_to_num(expected, 7)) and torch.equal(
        found.isnan(), expected.isnan()
    )


def as_batch(sets):
    counts = torch.tensor([len(one) for one in sets])
    x = torch.tensor([v for one in sets for v in one])[:, None]
    return x, torch.arange(len(sets)).repeat_interleave(counts), counts


@given(sets=SETS)
def test_every_rank_is_that_of_a_sort(fused, sets):
    x, index, counts = as_batch(sets)
    for rank in range(9):
        target = counts.clamp(max=rank + 1).view(-1, 1, 1)
        found = select(x, index, counts, target)
        for number, own in enumerate(sets):
            values = torch.tensor(own)
            if not own:
                expected = torch.zeros(())
            elif values.isnan().any():
                expected = torch.tensor(torch.nan)
            else:
                expected = values.sort().values[min(rank, len(own) - 1)]
            assert same(found[number, 0, 0], expected)


@given(sets=SETS, seed=st.integers(0, 99))
def test_weights_count_copies(fused, sets, seed):
    x, index, counts = as_batch(sets)
    times = torch.randint(0, 3, (len(x), 1), generator=torch.Generator().manual_seed(seed))
    copied, copies = index.repeat_interleave(times[:, 0]), x.repeat_interleave(times[:, 0], 0)
    numbers = torch.bincount(copied, minlength=len(counts))
    total = numbers.view(-1, 1, 1)
    targets = torch.cat([(total + 1) // 2, total], 1)
    valid = (numbers > 0) & (torch.bincount(index, x[:, 0].isnan().float(), len(counts)) == 0)
    weighted = select(x, index, counts, targets, times.float())
    assert same(weighted[valid], select(copies, copied, numbers, targets)[valid])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_many_ranks_and_channels(fused, dtype):
    counts = torch.randint(1, 60, (40,), generator=torch.Generator().manual_seed(0))
    index = torch.arange(40).repeat_interleave(counts)
    x = torch.randn(len(index), 70, generator=torch.Generator().manual_seed(1)).to(dtype)
    shares = torch.tensor([0.9, 0.1, 0.11, 0.5, 0.5])  # also descending
    targets = (shares * counts[:, None]).ceil().long().unsqueeze(-1)
    found = select(x, index, counts, targets)
    for number, own in enumerate(x.split(counts.tolist())):
        assert torch.equal(found[number], own.sort(0).values[targets[number, :, 0] - 1])


def test_the_first_of_equal_elements_receives_the_gradient(fused):
    x = torch.tensor([[2.0], [1.0], [1.0], [0.0], [-0.0]], requires_grad=True)
    index, counts = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([3, 2])
    found = select(x, index, counts, torch.tensor([2, 2]).view(2, 1, 1))
    found.sum().backward()
    assert x.grad.flatten().tolist() == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("weighted", [False, True])
def test_triton_selects_the_same(monkeypatch, weighted):
    pytest.importorskip("triton")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    special = [[0.0, -0.0, 1e-42, -1.0], [torch.inf, -torch.inf, 3e38], [1.0, torch.nan], [], [2.0]]
    x, index, counts = as_batch([*special, torch.randn(70).round(decimals=1).tolist()])
    x = torch.cat([x, -x, x + 1], 1)
    targets = torch.stack([counts.clamp(min=1), (counts + 1) // 2], 1).unsqueeze(-1)
    weight = 0.5 + torch.rand(len(x), 1) if weighted else None
    found = []
    for serves in (True, False):
        monkeypatch.setattr(selection, "kernels_serve", lambda x, serves=serves: serves)
        given = (x, index, counts, targets, weight)
        found.append(select(*[None if t is None else t.to(device) for t in given]).cpu())
    assert same(*found)
    assert found[0].shape == (6, 2, 3)


def test_a_target_beyond_the_weight_is_the_largest(fused):
    """Sums of weights are rounded, in one order or another."""
    x = torch.randn(70, 40, generator=torch.Generator().manual_seed(0))
    weight, one = torch.full((70, 1), 0.1), torch.zeros(70, dtype=torch.long)
    found = select(x, one, torch.tensor([70]), torch.tensor([3.0, 7.5]).view(1, 2, 1), weight)
    assert torch.equal(found[0, 1], x.amax(0))
