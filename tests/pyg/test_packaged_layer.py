"""What the README says of the layer that ships with PyTorch Geometric."""

import pytest
import torch
from torch_geometric.nn import aggr


@pytest.fixture
def theirs():
    torch.manual_seed(0)
    return aggr.EquilibriumAggregation(4, 8, num_layers=[32, 16], grad_iter=10)


@pytest.fixture
def batch():
    torch.manual_seed(1)
    return torch.randn(64 * 5, 4), torch.arange(64).repeat_interleave(5)


def test_depends_on_the_batch(theirs, batch):
    x, index = batch
    alone, together = theirs(x[:5])[0], theirs(x, index)[0]
    assert (alone - together).norm() > alone.norm()


def test_does_not_count(theirs, batch):
    x = batch[0][:5]
    torch.testing.assert_close(theirs(x.repeat(3, 1)), theirs(x), rtol=0, atol=1e-5)


def test_steps_by_another_number_than_it_is_given():
    optimizer = aggr.equilibrium.MomentumOptimizer(learning_rate=0.1)
    assert optimizer.learning_rate.item() == pytest.approx(0.744, abs=5e-4)


def test_keeps_a_graph_without_gradients(theirs, batch):
    with torch.no_grad():
        assert theirs(*batch).requires_grad


def test_fails_where_ours_works(theirs, batch):
    x, index = batch
    with pytest.raises(NotImplementedError):
        theirs(x, ptr=torch.arange(0, 321, 5))
    with torch.inference_mode(), pytest.raises(RuntimeError):
        theirs(x, index)
    with pytest.raises(RuntimeError):
        theirs.bfloat16()(x.bfloat16(), index)
