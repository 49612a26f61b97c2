"""Batches and presets."""

import pytest
import torch

from equipool.bench.cases import PRESETS, Case, first_sets, make_batch, select
from equipool.bench.paths import PATHS

CPU = torch.device("cpu")
CASE = Case(sets=5, elements=6, in_channels=3, out_channels=2, hidden=(4, 3))


def test_a_batch_is_the_same_in_every_form():
    batch = make_batch(CASE, CPU)
    assert batch.index.bincount(minlength=5).tolist() == list(batch.sizes)
    assert batch.ptr.diff().tolist() == list(batch.sizes)
    assert batch.x.shape == (batch.num_elements, 3)
    assert batch.upstream.shape == (5, 2)
    assert all(3 <= size <= 9 for size in batch.sizes)
    assert torch.equal(batch.x, make_batch(CASE, CPU).x)


def test_sizes_change_from_batch_to_batch():
    assert len({make_batch(CASE, CPU, seed).sizes for seed in range(8)}) == 8
    fixed = Case(sets=3, elements=7, varied=False)
    assert make_batch(fixed, CPU, 1).sizes == (7, 7, 7)


@pytest.mark.parametrize(
    ("max_sets", "spare", "sets"), [(3, 1000, 3), (5, 1, 2)], ids=["few sets", "few elements"]
)
def test_the_first_sets_are_those_of_the_batch(max_sets, spare, sets):
    batch = make_batch(CASE, CPU)
    part = first_sets(batch, max_sets, max_elements=sum(batch.sizes[:2]) + spare)
    assert part.sizes == batch.sizes[:sets]
    assert torch.equal(part.x, batch.x[: sum(part.sizes)])
    assert torch.equal(part.index, batch.index[: sum(part.sizes)])
    assert torch.equal(part.upstream, batch.upstream[:sets])


def test_a_first_set_that_is_too_large_is_cut():
    assert first_sets(make_batch(CASE, CPU), 5, 2).sizes == (2,)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_presets_start_with_the_plain_call(preset):
    items = preset.items()
    assert (items[0].path, items[0].mode) == ("equipool", "training")
    assert {item.path for item in items} <= set(PATHS)
    assert len(set(items)) == len(items)
    assert all(hasattr(case, preset.axis) for case in preset.cases)


def test_the_preset_of_the_plain_call():
    rows = [item[1:] for item in PRESETS["plain"].items() if item.case == Case(256, 26)]
    for precision in ("tf32", "bf16"):
        found = [(path, mode) for path, kind, mode in rows if kind == precision]
        assert found == [
            ("equipool", "training"),
            ("equipool", "inference"),
            ("equipool-captured", "training"),
            ("pyg", "training"),
        ]


def test_a_part_of_a_preset():
    items = PRESETS["layer"].items()
    found = {item[1:] for item in select(items, ["equipool", "sum"], ["tf32"], ["training"])}
    assert found == {("equipool", "tf32", "training")}
    assert select(items, None, None, None) == items
    assert "equipool-compiled" in {item.path for item in PRESETS["quick"].with_compiled().items()}
