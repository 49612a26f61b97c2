"""Random numbers of a step depend on seed, step and process, and on nothing else."""

from itertools import product

import torch

from equipool.training.devices import StepRandomness, mixed

CPU = torch.device("cpu")


def drawn(seed, rank, step):
    StepRandomness(seed, rank, CPU)(step)
    return torch.rand(4)


def test_each_seed_step_and_process_has_its_own():
    places = list(product(range(20), range(20), range(20)))
    values = {mixed(*place) for place in places}
    assert len(values) == len(places)
    assert all(0 <= value < 2**63 for value in values)


def test_all_three_change_what_is_drawn():
    first = drawn(seed=1, rank=0, step=5)
    for other in (drawn(2, 0, 5), drawn(1, 1, 5), drawn(1, 0, 6)):
        assert not torch.equal(first, other)


def test_what_was_drawn_before_does_not_matter():
    first = drawn(1, 0, 5)
    torch.rand(100)
    assert torch.equal(drawn(1, 0, 5), first)
