import pytest
import torch

from equipool.demo.models import Sizes, equilibrium_network
from equipool.demo.paths import error_along, follow, landscape
from equipool.demo.task import sample_sets

SMALL = Sizes(width=8, channels=4, potential_outputs=2, inner_steps=3, head_width=6)


@pytest.fixture
def network():
    torch.manual_seed(0)
    return equilibrium_network(SMALL)


@pytest.fixture
def sets():
    return sample_sets(3, torch.Generator().manual_seed(0))


def test_paths_pass_through_the_layers_output_and_go_on(network, sets):
    layer, x = network.pooling, sets[0]
    paths = follow(layer, x, num_steps=7)
    assert paths.num_steps == 7
    assert torch.equal(paths.y[0], layer.start.y.detach().expand(3, 4))
    torch.testing.assert_close(paths.y[paths.trained_steps], layer(x).detach())
    assert not torch.equal(paths.y[-1], paths.y[-2])


def test_following_leaves_the_layer_as_it_was(network, sets):
    follow(network.pooling, sets[0], num_steps=7)
    assert network.pooling.num_steps == 3


def test_energies_are_the_layers(network, sets):
    layer, x = network.pooling, sets[0]
    paths = follow(layer, x, num_steps=4)
    assert paths.energy.shape == (5, 3)
    torch.testing.assert_close(paths.energy[3], layer.solve(x).energy.detach())


def test_error_along_the_path_is_that_of_the_network_at_the_trained_step(network, sets):
    x, target = sets
    errors = error_along(network, follow(network.pooling, x, num_steps=5), target)
    expected = (network(x) - target).square().mean()
    torch.testing.assert_close(errors[3], expected.detach())
    assert errors.shape == (6,)


def test_the_landscape_is_the_layers_energy_on_a_plane_through_the_end(network, sets):
    layer, x = network.pooling, sets[0][:1]
    path = follow(layer, x, num_steps=6).y[:, 0]
    found = landscape(layer, x[0], path, grid=5)
    assert torch.equal(found.path[-1], torch.zeros(2))
    # an independent way to the same plane: the two leading eigenvectors of the scatter matrix
    away = path - path[-1]
    directions = torch.linalg.eigh(away.T @ away).eigenvectors[:, -2:].flip(-1).T
    signs = torch.sign((away @ directions.T * found.path).sum(0))
    for row, column in ((0, 0), (1, 3), (4, 2)):
        point = torch.stack([found.horizontal[column], found.vertical[row]]) * signs
        y = path[-1:] + point @ directions
        torch.testing.assert_close(
            found.energy[row, column], layer.energy(x, y)[0].detach(), rtol=1e-3, atol=1e-4
        )


def test_the_landscape_holds_the_whole_path_at_one_scale(network, sets):
    layer, x = network.pooling, sets[0][:1]
    path = follow(layer, x, num_steps=6).y[:, 0]
    found = landscape(layer, x[0], path, grid=5)
    for axis, points in ((found.horizontal, found.path[:, 0]), (found.vertical, found.path[:, 1])):
        assert axis[0] < points.min()
        assert axis[-1] > points.max()
    width, height = (axis[-1] - axis[0] for axis in (found.horizontal, found.vertical))
    torch.testing.assert_close(width, height)


def test_share_of_a_path_that_lies_in_a_plane_is_all_of_it(network, sets):
    path = torch.tensor([[3.0, 0, 0, 0], [1, 2, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]])
    found = landscape(network.pooling, sets[0][0], path, grid=3)
    assert found.share == pytest.approx(1)


def test_share_counts_what_the_plane_leaves_out(network, sets):
    path = torch.tensor([[3.0, 0, 0, 0], [0, 2, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]])
    found = landscape(network.pooling, sets[0][0], path, grid=3)
    assert found.share == pytest.approx(13 / 14)
