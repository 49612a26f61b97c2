"""Batches of sets in every layout people keep them in."""

import numpy as np
import pytest
import torch

from cases import flatten, make_layer, make_sets, offsets
from equipool.sets import Sets, gather_sets

SIZES = (2, 0, 3, 1)


@pytest.fixture
def batch():
    return make_sets(SIZES)


def test_within_a_set_elements_keep_the_order_they_came_in(batch):
    x, index = flatten(batch)
    order = torch.tensor([5, 2, 0, 4, 1, 3])
    elements, sets = gather_sets(x[order], index[order])
    assert torch.equal(elements, x[torch.tensor([0, 1, 2, 4, 3, 5])])
    assert torch.equal(sets.index, index)


@pytest.mark.parametrize("at_hand", [True, False])
def test_elements_that_a_mask_hides(batch, at_hand, monkeypatch):
    """They are dropped. On a GPU they stay, zeroed, in a row of their own that counts as empty."""
    monkeypatch.setattr("equipool.sets.values_are_at_hand", lambda x: at_hand)
    x, index = flatten(batch)
    wide = torch.cat([x.new_full((2, 3), torch.nan), x])
    wide_index = torch.cat([index.new_tensor([-5, 99]), index])
    mask = torch.arange(len(wide)) >= 2
    elements, sets = gather_sets(wide, wide_index, mask=mask, dim_size=4)
    assert sets.counts.tolist() == [*SIZES, *([] if at_hand else [0])]
    assert torch.equal(elements[:6], x)
    assert torch.equal(elements[6:], x.new_zeros(0 if at_hand else 2, 3))


def test_sets_that_several_layers_share(batch):
    x, index = flatten(batch)
    layer, (elements, sets) = make_layer(), gather_sets(x, index)
    assert gather_sets(elements, sets) == (elements, sets)
    assert torch.equal(layer(elements, sets), layer(x, index))
    for wrong, layout, match in (
        (x[1:], {}, "index has shape"), (x.unsqueeze(0), {}, "x has shape"),
        (x, {"ptr": offsets(batch)}, "beside sets"), (x, {"dim_size": 5}, "dim_size is 5"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=match):
            gather_sets(wrong, sets, **layout)


@pytest.mark.parametrize("at_hand", [True, False])
def test_sets_keep_the_order_in_which_elements_were_given(batch, at_hand, monkeypatch):
    monkeypatch.setattr("equipool.sets.values_are_at_hand", lambda x: at_hand)
    x, index = flatten(batch)
    layer, expected = make_layer(), make_layer()(x, index, dim_size=5)
    order = torch.tensor([5, 2, 0, 4, 1, 3])
    sets = Sets.from_index(index[order], dim_size=5)
    for _ in range(2):
        torch.testing.assert_close(layer(x[order], sets), expected)
    torch.testing.assert_close(layer.solve(x[order], sets).y, expected)
    torch.testing.assert_close(layer(x, Sets.from_ptr(offsets(batch))), expected[:4])
    mask = torch.arange(3) < torch.tensor(SIZES).unsqueeze(-1)
    padded = x.new_full((4, 3, 3), torch.nan)
    padded[mask] = x
    torch.testing.assert_close(layer(padded, Sets.from_mask(mask)), expected[:4])
    with pytest.raises(ValueError, match=r"x has shape \[5, 3\], expected \[6, C\]"):
        layer(x[1:], sets)


def test_padding_of_shared_sets_may_hold_anything(batch, monkeypatch):
    x, index = flatten(batch)
    expected = make_layer()(x, index)
    monkeypatch.setattr("equipool.sets.values_are_at_hand", lambda x: False)
    wide = torch.cat([x, x.new_full((2, 3), torch.nan)]).requires_grad_()
    mask = torch.arange(len(wide)) < len(x)
    _, sets = gather_sets(wide, torch.nn.functional.pad(index, (0, 2)), mask=mask, dim_size=4)
    y = make_layer()(wide, sets)
    torch.testing.assert_close(y, expected)
    y.sum().backward()
    assert wide.grad[: len(x)].any()
    assert not wide.grad[len(x) :].any()


def test_the_number_of_sets_is_read_from_real_elements_only():
    x, index = torch.randn(3, 2), torch.tensor([0, 1, 99])
    _, sets = gather_sets(x, index, mask=torch.tensor([True, True, False]))
    assert sets.num_sets == 2


def test_dim_size_agrees_with_every_layout(batch):
    layer = make_layer()
    x, index = flatten(batch)
    y = layer(x, index)
    assert torch.equal(layer(x, index, dim_size=np.int64(4)), y)
    assert torch.equal(layer(x, ptr=offsets(batch), dim_size=4), y)
    nested = torch.nested.nested_tensor(batch, layout=torch.jagged)
    assert torch.equal(layer(nested, dim_size=4), y)


@pytest.mark.parametrize(
    ("x", "layout", "num_sets"),
    [
        (torch.zeros(0, 3), {}, 1),
        (torch.zeros(0, 3), {"index": torch.zeros(0, dtype=torch.long)}, 0),
        (torch.zeros(0, 3), {"index": torch.zeros(0, dtype=torch.long), "dim_size": 0}, 0),
        (torch.zeros(0, 3), {"index": torch.zeros(0, dtype=torch.long), "dim_size": 3}, 3),
        (torch.zeros(0, 3), {"ptr": torch.tensor([0])}, 0),
        (torch.zeros(0, 3), {"ptr": torch.tensor([0, 0, 0])}, 2),
        (torch.zeros(0, 5, 3), {}, 0),
        (torch.zeros(2, 0, 3), {}, 2),
        (torch.zeros(2, 5, 3), {"mask": torch.zeros(2, 5, dtype=torch.bool)}, 2),
        (torch.zeros(5, 3), {"mask": torch.zeros(5, dtype=torch.bool)}, 1),
    ],
)
def test_nothing_at_all(x, layout, num_sets):
    """Empty sets have the start for their output, zero energy, and do no harm to a gradient."""
    layer = make_layer()
    x = x.double().requires_grad_()
    solution = layer.solve(x, **layout)
    assert torch.equal(solution.y, torch.zeros(num_sets, 4, dtype=torch.float64))
    assert torch.equal(solution.energy, torch.zeros(num_sets, dtype=torch.float64))
    assert solution.converged.all()
    assert solution.finite.all()
    assert not solution.occupied.any()
    assert solution.aux_loss == 0
    (solution.y.sum() + solution.aux_loss).backward()
    for parameter in layer.parameters():
        assert parameter.grad is None or bool((parameter.grad == 0).all())


def test_inputs_are_left_as_they_were(batch):
    layer = make_layer()
    x, index = flatten(batch)
    order = torch.tensor([5, 2, 0, 4, 1, 3])
    x, index = x[order], index[order]
    kept = x.clone(), index.clone()
    layer(x, index)
    assert torch.equal(x, kept[0])
    assert torch.equal(index, kept[1])


def test_views_and_strides(batch):
    """Transposed and strided inputs are inputs like others."""
    layer = make_layer()
    x, index = flatten(batch)
    y = layer(x, index)
    assert not x.T.contiguous().T.is_contiguous()
    torch.testing.assert_close(layer(x.T.contiguous().T, index), y)
    wide = torch.stack([index, index], dim=1).reshape(-1)[::2]
    torch.testing.assert_close(layer(x, wide), y)
    torch.testing.assert_close(layer(x[0:1].expand(3, 3)), layer(x[0:1].repeat(3, 1)))


@pytest.mark.parametrize("shape", [(1, 5, 3), (5, 1, 3), (2, 3, 3)])
def test_the_index_lies_in_memory_as_it_reads(shape):
    """Kernels read it so, and a padded batch of one set expands a single number."""
    assert gather_sets(torch.randn(shape))[1].index.is_contiguous()
