"""The law by which sets of characters are drawn."""

import random
from collections import Counter
from itertools import permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipool.experiments.omniglot.data import Pool, sample_distinct, sample_sets


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def draw(number, pool, seed=0, **sizes):
    return sample_sets((number,), pool, generator(seed), **sizes)


@given(
    st.integers(0, 1000),
    st.integers(1, 6).flatmap(lambda k: st.tuples(st.just(k), st.integers(k, 12))),
    st.integers(6, 9),
    st.integers(1, 5),
)
def test_every_set_is_as_it_says(seed, sizes, characters, drawings):
    """The number is that of the different characters, which are all of the pool."""
    max_classes, set_size = sizes
    pool = Pool(11, characters, drawings)
    sets = draw(40, pool, seed, set_size=set_size, max_classes=max_classes)
    assert sets.images.shape == (40, set_size)
    for images, number in zip(sets.images.tolist(), sets.num_classes.tolist(), strict=True):
        own = [image // drawings for image in images]
        assert len(set(own)) == number
        assert 1 <= number <= max_classes
        assert set(own) <= set(range(11, 11 + characters))
        # as many different drawings of each character as there can be
        for character, places in Counter(own).items():
            different = {image for image in images if image // drawings == character}
            assert len(different) == min(places, drawings)


def naive_set(draw):
    """Four drawings of at most two of three characters: each has a place, and each of the places
    left has one of them; those of one character are distinct."""
    chosen = draw.sample(range(3), draw.randint(1, 2))
    places = [*chosen, *draw.choices(chosen, k=4 - len(chosen))]
    draw.shuffle(places)
    drawings = {character: draw.sample(range(4), 4) for character in chosen}
    return [(character, drawings[character].pop()) for character in places]


@pytest.mark.parametrize("which", [0, 1], ids=["characters", "drawings"])
def test_sets_are_as_likely_as_if_drawn_one_by_one(which):
    """The statistic of chi-squared of two samples is within five deviations."""
    number, python = 30_000, random.Random(0)
    images = draw(number, Pool(0, 3, 4), set_size=4, max_classes=2).images
    split = (images // 4, images % 4)[which].tolist()
    found = Counter(map(tuple, split))
    naive = Counter(tuple(part[which] for part in naive_set(python)) for _ in range(number))
    every = found | naive
    statistic = sum((found[key] - naive[key]) ** 2 / (found[key] + naive[key]) for key in every)
    freedom = len(every) - 1
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5


def test_distinct_numbers_are_uniform_in_every_order():
    found = Counter(map(tuple, sample_distinct((24_000,), 3, 4, generator()).tolist()))
    assert set(found) == set(permutations(range(4), 3))
    assert sum((number - 1000) ** 2 / 1000 for number in found.values()) < 23 + 5 * 46**0.5
    everything = sample_distinct((5, 10), 6, 6, generator())
    assert torch.equal(everything.sort(-1).values, torch.arange(6).expand(5, 10, 6))
