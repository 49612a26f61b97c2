import torch

from equipool.bench.cases import Case, first_sets, make_batch

CPU = torch.device("cpu")
CASE = Case(sets=5, elements=6, in_channels=3, out_channels=2, hidden=(4, 3))


def test_a_batch_says_the_same_in_every_form():
    batch = make_batch(CASE, CPU)
    assert batch.index.bincount(minlength=5).tolist() == list(batch.sizes)
    assert batch.ptr.diff().tolist() == list(batch.sizes)
    assert batch.x.shape == (batch.num_elements, 3)
    assert batch.upstream.shape == (5, 2)
    assert all(3 <= size <= 9 for size in batch.sizes)


def test_sizes_are_exact_where_they_do_not_vary():
    case = Case(sets=3, elements=7, varied=False)
    assert make_batch(case, CPU).sizes == (7, 7, 7)


def test_the_same_case_gives_the_same_batch():
    assert torch.equal(make_batch(CASE, CPU).x, make_batch(CASE, CPU).x)


def test_the_first_sets_are_those_of_the_batch():
    batch = make_batch(CASE, CPU)
    part = first_sets(batch, max_sets=3, max_elements=1000)
    assert part.sizes == batch.sizes[:3]
    assert torch.equal(part.x, batch.x[: sum(part.sizes)])
    assert torch.equal(part.index, batch.index[: sum(part.sizes)])
    assert torch.equal(part.upstream, batch.upstream[:3])


def test_whole_sets_are_taken_as_long_as_they_fit():
    batch = make_batch(CASE, CPU)
    assert first_sets(batch, 5, sum(batch.sizes[:2]) + 1).sizes == batch.sizes[:2]


def test_a_first_set_that_is_too_large_is_cut():
    batch = make_batch(CASE, CPU)
    assert first_sets(batch, 5, 2).sizes == (2,)
