import pytest
import torch

from equipool.experiments.omniglot.images import resize, shrink
from equipool.experiments.omniglot.images.resize import area_weights


def naive(image, size):
    """Every old pixel's overlap with every new one, one by one."""
    source = len(image)
    found = torch.zeros(size, size, dtype=torch.float64)

    def overlap(new, old):
        low, high = new * source / size, (new + 1) * source / size
        return max(0.0, min(high, old + 1) - max(low, old))

    for i in range(size):
        for j in range(size):
            for a in range(source):
                for b in range(source):
                    found[i, j] += overlap(i, a) * overlap(j, b) * image[a][b].item()
    return (255 * found * (size / source) ** 2).round()


@pytest.mark.parametrize(("source", "size"), [(7, 3), (8, 4), (5, 5), (9, 1), (13, 8)])
def test_it_is_the_average_over_areas(source, size):
    images = (torch.rand(3, 2, source, source) < 0.4).to(torch.uint8)
    found = shrink(images, size)
    assert found.shape == (3, 2, size, size)
    assert found.dtype == torch.uint8
    expected = torch.stack([naive(image, size) for image in images.flatten(0, 1)])
    # halves may be rounded either way
    assert (found.flatten(0, 1) - expected).abs().max() <= 1
    assert (found.flatten(0, 1) == expected).float().mean() > 0.95


def test_weights_share_out_every_pixel():
    weights = area_weights(105, 32)
    torch.testing.assert_close(weights.sum(1), torch.ones(32))
    torch.testing.assert_close(weights.sum(0), torch.full((105,), 32 / 105))


def test_parts_are_as_the_whole(monkeypatch):
    images = (torch.rand(11, 9, 9) < 0.5).to(torch.uint8)
    whole = shrink(images, 4)
    monkeypatch.setattr(resize, "IMAGES_AT_ONCE", 3)
    assert torch.equal(shrink(images, 4), whole)


@pytest.mark.parametrize("size", [0, 10])
def test_other_sizes_are_refused(size):
    with pytest.raises(ValueError, match=f"size is {size}, expected 1 to 9"):
        shrink(torch.zeros(9, 9, dtype=torch.uint8), size)
