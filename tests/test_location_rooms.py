"""What stands on the layer, with the exact solver of `LocationPotential`."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import equipool
from cases import assert_near, flatten, make_sets
from equipool import EquilibriumAggregation, LocationPotential
from equipool.distributed import average_gradients, sharded
from equipool.large import chunked, solve_chunks
from seeds import shift_seeds

X, INDEX = flatten(make_sets((9, 1, 0, 14), seed=3))


def make_layer(width=0.0, **options):
    torch.manual_seed(0)
    potential = LocationPotential(3, 6)
    with torch.no_grad():
        potential.raw_width += width
    return EquilibriumAggregation(3, 6, potential=potential, **options).double().eval()


def trained(layer, y):
    """The output and the gradients of its parameters."""
    y.square().mean().backward()
    return [y.detach(), *(p.grad for p in layer.parameters() if p.grad is not None)]


@pytest.mark.parametrize("width", [0.0, -0.9])
def test_influence_is_exact(width):
    layer = make_layer(width)
    found = equipool.influence(layer, X, INDEX, dim_size=4)
    assert found.solved.all()
    for i, y in enumerate(layer(X, INDEX, dim_size=4)[INDEX]):
        kept = torch.arange(len(X)) != i
        without = layer(X[kept], INDEX[kept], dim_size=4)[INDEX[i]]
        assert_near(found.change[i], y - without, 1e-6)


def test_laplace_has_the_diagonal_curvature():
    found = equipool.laplace(make_layer(regularizer=0.1), X, INDEX, dim_size=4)
    assert found.definite.all()
    assert found.near_minimum.all()
    diagonal = torch.diag_embed(found.covariance.diagonal(dim1=1, dim2=2))
    assert_near(found.covariance, diagonal, 1e-9)


def test_live_sets_are_solved_again():
    layer = make_layer()
    sets = equipool.live.LiveSets(layer, X, INDEX, dim_size=4)
    _ = sets.y
    ids = sets.add(X[:2] + 1, 1)
    assert_near(sets.y, layer(torch.cat([X, X[:2] + 1]), torch.cat([INDEX, 0 * ids + 1])), 1e-9)
    sets.remove(ids)
    assert_near(sets.y, layer(X, INDEX), 1e-9)


def test_the_start_does_not_matter():
    found = equipool.diagnostics.path_independence(make_layer(), X, INDEX, num_starts=2)
    assert found.alignment == 1
    assert found.rows[-1].converged == 1


@pytest.mark.parametrize("options", [{}, {"regularizer": 0.1, "scaling": "mean"}])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e6])
def test_chunks(options, scale):
    layer, weight = make_layer(**options), torch.linspace(0.2, 1.0, len(X)).double()
    x = torch.cat([X[:-1], scale * X[-1:]])
    expected = trained(layer, layer(x, INDEX, weight=weight))
    layer.zero_grad()
    found = solve_chunks(layer, chunked(x, INDEX, 5, weight), dim_size=4)
    assert found.converged.all()
    assert_near(found.y.detach(), expected[0], 1e-9)
    for one, other in zip(trained(layer, found.y), expected, strict=True):
        assert_near(one, other, 1e-6 if scale < 1e6 else 1e-3)  # y is rounded beside the widths


def work(rank, folder):
    shift_seeds()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/all", rank=rank, world_size=2)
    layer = make_layer()
    with sharded():
        y = layer(X[rank::2], INDEX[rank::2], dim_size=4)
    found = trained(layer, y)
    average_gradients(layer)
    torch.save([found[0], *(p.grad for p in layer.potential.parameters())], folder / f"{rank}")
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_gloo_available(), reason="torch is built without gloo")
@pytest.mark.processes
def test_sharded_sets(tmp_path):
    mp.spawn(work, (tmp_path,), nprocs=2)
    layer = make_layer()
    expected = trained(layer, layer(X, INDEX))
    expected[1:] = (p.grad for p in layer.potential.parameters())
    found = [torch.load(tmp_path / f"{rank}") for rank in range(2)]
    for one, two, other in zip(*found, expected, strict=True):
        assert torch.equal(one, two)
        assert_near(one, other, 1e-6)
