import numpy as np
import pytest
import torch

from equipool.experiments.median import DISTRIBUTIONS, medians, sample_sets


def draw(kind, num_sets=2000, set_size=100, seed=0):
    """Sets of one distribution."""
    generator = torch.Generator().manual_seed(seed)
    x, kinds = sample_sets((4 * num_sets,), set_size, generator)
    return x[kinds == DISTRIBUTIONS.index(kind)][:num_sets]


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_the_whole_distribution_is_the_papers(kind):
    """Against samplers that share nothing with ours: the greatest gap between the two empirical
    distribution functions is within five deviations."""
    generator = np.random.default_rng(0)
    size = 200_000
    theirs = {
        "uniform": lambda: generator.uniform(0, 1, size),
        "gamma": lambda: generator.gamma(0.5, 0.2, size),
        "normal": lambda: generator.normal(0.5, 0.4, size),
    }[kind]()
    ours = np.sort(draw(kind).flatten().numpy())
    at = np.arange(1, size + 1) / size
    gap = np.abs(np.searchsorted(ours, np.sort(theirs)) / ours.size - at).max()
    assert gap < 5 * (0.25 * 2 / size) ** 0.5


@pytest.mark.parametrize("size", [1, 2, 5, 32, 100])
def test_medians_are_those_of_numpy(size):
    x = torch.randn(3, 7, size, generator=torch.Generator().manual_seed(size))
    np.testing.assert_allclose(medians(x).numpy(), np.median(x.numpy(), axis=-1), rtol=1e-6)
