"""The law by which sets of characters are drawn."""

from collections import Counter
from itertools import permutations, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipool.experiments.omniglot.data import Pool, sample_distinct, sample_sets

POOL = Pool(first=7, characters=30, drawings=20)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def draw(number, pool=POOL, seed=0, **sizes):
    return sample_sets((number,), pool, generator(seed), **sizes)


def assert_probabilities(found, expected):
    """Frequencies are those expected: the statistic of chi-squared is within five deviations."""
    total = sum(found.values())
    assert set(found) <= set(expected)
    statistic = sum((found[key] - total * p) ** 2 / (total * p) for key, p in expected.items())
    freedom = len(expected) - 1
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5


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


def test_sizes_of_the_classes():
    """Each character has a place, and each of the places left one of them: by enumeration."""
    expected = Counter()
    for k in (1, 2, 3):
        choices = list(product(range(k), repeat=6 - k))
        for choice in choices:
            sizes = tuple(sorted(1 + choice.count(slot) for slot in range(k)))
            expected[sizes] += 1 / 3 / len(choices)
    sets = draw(20_000, set_size=6, max_classes=3)
    found = Counter(
        tuple(sorted(Counter(images).values())) for images in (sets.images // 20).tolist()
    )
    assert_probabilities(found, expected)


def test_characters_are_equally_likely_and_independent_of_the_number():
    sets = draw(30_000, Pool(3, 5, 2), max_classes=5, set_size=5)
    for number in (1, 2):
        own = (sets.images[sets.num_classes == number] // 2).tolist()
        found = Counter(tuple(sorted(set(images))) for images in own)
        chosen = {tuple(sorted(pair)) for pair in permutations(range(3, 8), number)}
        assert_probabilities(found, {pair: 1 / len(chosen) for pair in chosen})


@pytest.mark.parametrize("characters", [1, 2])
def test_drawings_are_equally_likely(characters):
    """Those of one character are distinct; those of two have nothing to do with each other."""
    sets = draw(20_000, Pool(0, 4, 3), set_size=2, max_classes=characters)
    images = sets.images[sets.num_classes == characters]
    found = Counter(tuple(image % 3 for image in pair) for pair in images.tolist())
    pairs = list(permutations(range(3), 2) if characters == 1 else product(range(3), repeat=2))
    assert_probabilities(found, dict.fromkeys(pairs, 1 / len(pairs)))


def test_places_are_shuffled():
    """No pair of places is more likely than another to have the same character."""
    sets = draw(20_000, set_size=5, max_classes=3)
    own = sets.images // 20
    same = Counter(
        {(i, j): int((own[:, i] == own[:, j]).sum()) for i in range(5) for j in range(i + 1, 5)}
    )
    mean = sum(same.values()) / len(same)
    assert max(abs(number - mean) for number in same.values()) < 5 * (0.25 * 20_000) ** 0.5


def test_distinct_numbers_are_uniform_in_every_order():
    found = Counter(map(tuple, sample_distinct((24_000,), 3, 4, generator()).tolist()))
    assert_probabilities(found, dict.fromkeys(permutations(range(4), 3), 1 / 24))
    everything = sample_distinct((5, 10), 6, 6, generator())
    assert torch.equal(everything.sort(-1).values, torch.arange(6).expand(5, 10, 6))
