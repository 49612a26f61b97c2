import torch

from equipool import ResNetPotential
from equipool.experiments.residual import ResidualNetwork


def test_it_is_the_network_of_the_potential():
    network, potential = ResidualNetwork((5, 8, 8, 3)), ResNetPotential(2, 3, hidden=(8, 8, 3))
    network.load_state_dict(potential.state_dict())
    x, y = torch.randn(4, 2), torch.randn(4, 3)
    z = network(torch.cat([x, y], dim=-1))
    torch.testing.assert_close(z.square().mean(-1), potential(x, y))


def test_a_single_number_is_more_than_its_sign():
    """With biases of zero the first hidden layer would be the same for all positive numbers."""
    network = ResidualNetwork((1, 16, 4))
    hidden = torch.tanh(network.norms[0](network.linears[0](torch.tensor([[0.1], [0.9]]))))
    assert (hidden[0] - hidden[1]).abs().max() > 0.01
