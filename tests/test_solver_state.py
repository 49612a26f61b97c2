"""States of rows: taking, putting back and choosing some of them."""

import torch

from equipool.solver_state import with_unchanged


def test_unchanged_numbers_are_taken_from_the_source_row_by_row():
    own = (torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([5.0, 6.0]), torch.tensor([1, 2]))
    source = tuple(tensor.clone() for tensor in own)
    source[0][0, 1] = 9.0
    for tensor in source[:2]:
        tensor.requires_grad_()
    taken = with_unchanged(own, source, torch.tensor([True, False]))
    assert all(torch.equal(a, b) for a, b in zip(taken, own, strict=True))
    (taken[0].sum() + taken[1].sum()).backward()
    assert source[0].grad.tolist() == [[1.0, 0.0], [0.0, 0.0]]
    assert source[1].grad.tolist() == [1.0, 0.0]
