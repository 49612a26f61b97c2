import pytest
import torch

from equipool.demo.task import DISTRIBUTIONS, SET_SIZE, sample_kinds, sample_sets


@pytest.mark.parametrize(
    ("kind", "mean", "variance"),
    [("uniform", 0.5, 1 / 12), ("gamma", 0.5 * 0.2, 0.5 * 0.2**2), ("normal", 0.5, 0.4**2)],
)
def test_distributions_have_the_papers_moments(kind, mean, variance):
    kinds = torch.full((2000,), DISTRIBUTIONS.index(kind))
    x, _ = sample_kinds(kinds, torch.Generator().manual_seed(0))
    deviation = (variance / x.numel()) ** 0.5
    assert abs(x.mean().item() - mean) < 5 * deviation
    assert x.var().item() == pytest.approx(variance, rel=0.03)


def test_uniform_and_gamma_numbers_stay_in_their_range():
    x, _ = sample_kinds(torch.tensor([0, 1] * 50), torch.Generator().manual_seed(0))
    assert x.min() >= 0
    assert x[::2].max() <= 1


def test_all_distributions_are_drawn_about_equally_often():
    x, _ = sample_sets(3000, torch.Generator().manual_seed(0))
    # only the normal goes below 0; among the others, only gamma sets have a mean below 0.3
    normal = (x.squeeze(-1) < 0).any(-1)
    gamma = ~normal & (x.squeeze(-1).mean(-1) < 0.3)
    assert normal.float().mean().item() == pytest.approx(1 / 3, abs=0.05)
    assert gamma.float().mean().item() == pytest.approx(1 / 3, abs=0.05)


def test_target_is_the_median_of_the_set_beside_it():
    x, target = sample_sets(20, torch.Generator().manual_seed(1))
    assert x.shape == (20, SET_SIZE, 1)
    torch.testing.assert_close(target, torch.quantile(x.squeeze(-1), 0.5, dim=1))


def test_a_seed_gives_the_same_sets_and_another_seed_others():
    draws = [sample_sets(4, torch.Generator().manual_seed(seed))[0] for seed in (3, 3, 4)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
