import torch

from equipool.experiments.streams import generator_for

CPU = torch.device("cpu")


def test_a_key_has_one_stream():
    draws = [torch.rand(8, generator=generator_for(CPU, *key)) for key in [("a", 1), ("a", 1)]]
    assert torch.equal(*draws)


def test_other_keys_have_other_streams():
    keys = [("a", i, j) for i in range(30) for j in range(30)] + [("b", 0, 0), ("a", "0", 0)]
    seeds = {generator_for(CPU, *key).initial_seed() for key in keys}
    assert len(seeds) == len(keys)


def test_a_seed_is_no_longer_than_a_cpu_reads():
    assert all(generator_for(CPU, i).initial_seed() < 2**32 for i in range(100))
