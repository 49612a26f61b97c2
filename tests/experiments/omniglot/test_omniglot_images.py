import pytest
import torch
from torch.nn import functional

import tiny_omniglot as tiny
from equipool.experiments.common import data_folder
from equipool.experiments.omniglot.data import character_images, held_out, shrink

pytestmark = pytest.mark.usefixtures("tiny_data")

CPU = torch.device("cpu")

# Another choice would make older records the measurement of something else.
HELD_OUT = {
    "Bb_(Old)/character01", "Bb_(Old)/character03", "Bb_(Old)/character09", "Aa/character11",
}  # fmt: skip


def test_images_belong_to_their_names():
    data = character_images(data_folder(), 12, 5, CPU)
    images = {
        name: torch.from_numpy(images)
        for part in ("background", "evaluation")
        for name, images in zip(tiny.names(part), tiny.drawings(part), strict=True)
    }
    found = data.pixels.view(42, tiny.DRAWINGS, 12, 12)
    for name, own in zip(data.names, found, strict=True):
        assert torch.equal(own, shrink(images[name], 12))


def test_names_alone_decide_what_is_held_out():
    names = tuple(tiny.names("background"))
    assert held_out(names, 4) == held_out(names[::-1], 4) == HELD_OUT
    assert held_out(names, 9) > HELD_OUT
    with pytest.raises(ValueError, match="validation_characters is 30, expected fewer than 30"):
        held_out(names, 30)


@pytest.mark.parametrize(("source", "size"), [(7, 3), (8, 4), (5, 5), (9, 1)])
def test_it_is_the_average_over_areas(source, size):
    images = (torch.rand(3, 2, source, source) < 0.4).to(torch.uint8)
    found = shrink(images, size)
    assert found.shape == (3, 2, size, size)
    assert found.dtype == torch.uint8
    # each pixel as a square of size x size small ones, of which source x source are one again
    large = images.double().repeat_interleave(size, -1).repeat_interleave(size, -2)
    difference = found - (255 * functional.avg_pool2d(large, source)).round()
    assert difference.abs().max() <= 1  # halves may be rounded either way
    assert (difference == 0).float().mean() > 0.95
