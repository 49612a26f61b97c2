import pytest
import torch
from torch.nn import functional

from equipool.baselines import aggregation_from_name
from equipool.experiments.common import InnerLoop
from equipool.experiments.omniglot.network import ConvolutionalBlock, ImageEncoder, OmniglotNetwork


@pytest.fixture(params=["sum", "equilibrium"])
def network(request):
    torch.manual_seed(0)
    if request.param == "equilibrium":
        aggregation = InnerLoop().equilibrium_layer(8, 8, (8, 8, 4), 3)
    else:
        aggregation = aggregation_from_name(request.param, 8, 8)
    network = OmniglotNetwork(ImageEncoder(8, (4, 6), 8), aggregation, 8, 5, 12)
    with torch.no_grad():
        for block in network.encoder.blocks:
            block.second.weight.normal_(std=0.3)  # zero at the start
    return network.eval()


def make_images(*shape):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(256, (*shape, 8, 8), generator=generator).to(torch.uint8)


def test_neither_the_order_nor_other_sets_matter(network):
    images = make_images(5, 6)
    found = network(images)
    assert found.shape == (5, 5)
    assert (network(images.roll(1, dims=0)) - found).abs().max() > 1e-3
    near = {"rtol": 1e-3, "atol": 1e-4}
    shuffled = network(images[:, torch.tensor([4, 2, 0, 5, 3, 1])])
    torch.testing.assert_close(shuffled, found, **near)
    among_others = network(torch.cat([images[:1], 255 - images[1:]]))
    torch.testing.assert_close(among_others[0], found[0], **near)


def test_a_block_by_hand():
    block = ConvolutionalBlock(2, 3)
    with torch.no_grad():
        block.second.weight.normal_()
        block.first.bias.normal_()
    z = torch.randn(4, 2, 6, 6)
    w, v, s = block.first, block.second, block.skip
    branch = functional.conv2d(z.clamp(min=0), w.weight, w.bias, stride=2, padding=1)
    branch = functional.conv2d(branch.clamp(min=0), v.weight, v.bias, padding=1)
    patches = z.unfold(2, 2, 2).unfold(3, 2, 2)  # [n, in, h, w, 2, 2]
    skip = torch.einsum("nihwab,oiab->nohw", patches, s.weight)
    torch.testing.assert_close(block(z), skip + branch, rtol=1e-4, atol=1e-5)


def test_an_encoder_starts_linear():
    """So that embeddings of images differ as much as the images."""
    encoder = ImageEncoder(32, (16, 32, 64), 256).double()
    a, b = torch.rand(2, 1, 1, 32, 32, dtype=torch.float64)
    zero = encoder(torch.zeros_like(a))
    torch.testing.assert_close(encoder(a + b) + zero, encoder(a) + encoder(b))
    with pytest.raises(ValueError, match="image_size is 10, expected a multiple of 8"):
        ImageEncoder(10, (16, 32, 64), 256)
