import numpy as np
import pytest
import torch

from equipool.experiments.median.data import DISTRIBUTIONS, medians, sample_kinds


def draw(kind, num_sets=2000, set_size=100, seed=0):
    kinds = torch.full((num_sets,), DISTRIBUTIONS.index(kind))
    return sample_kinds(kinds, set_size, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("kind", "mean", "variance"),
    [("uniform", 0.5, 1 / 12), ("gamma", 0.5 * 0.2, 0.5 * 0.2**2), ("normal", 0.5, 0.4**2)],
)
def test_moments_are_the_papers(kind, mean, variance):
    x = draw(kind)
    deviation = (variance / x.numel()) ** 0.5
    assert abs(x.mean().item() - mean) < 5 * deviation
    assert x.var().item() == pytest.approx(variance, rel=0.03)


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


def test_numbers_of_a_set_are_drawn_apart():
    """Correlations within a set and between sets vanish."""
    x = draw("gamma", num_sets=5000, set_size=4)
    correlation = torch.corrcoef(x.T)
    assert (correlation - torch.eye(4)).abs().max() < 5 / 5000**0.5
    assert torch.unique(x).numel() > 0.999 * x.numel()


@pytest.mark.parametrize("size", [1, 2, 5, 32, 100])
def test_medians_are_those_of_numpy(size):
    x = torch.randn(3, 7, size, generator=torch.Generator().manual_seed(size))
    np.testing.assert_allclose(medians(x).numpy(), np.median(x.numpy(), axis=-1), rtol=1e-6)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [([3.0, 1.0, 2.0], 2.0), ([4.0, 1.0, 2.0, 3.0], 2.5), ([7.0], 7.0), ([5.0, 5.0, 1.0, 9.0], 5)],
)
def test_median_by_hand(numbers, expected):
    assert medians(torch.tensor([numbers])).item() == expected


def test_kinds_may_be_mixed():
    kinds = torch.tensor([[0, 1], [2, 0]]).repeat(50, 1)
    x = sample_kinds(kinds, 100, torch.Generator().manual_seed(0))
    assert x.shape == (100, 2, 100)
    assert ((x[kinds == 0] >= 0) & (x[kinds == 0] <= 1)).all()
    assert (x[kinds == 1] >= 0).all()
    assert x[kinds == 1].mean() == pytest.approx(0.1, abs=0.01)
    assert (x[kinds == 2] < 0).any(-1).all()
