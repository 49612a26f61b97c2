"""Reading PyTorch Geometric's own layer."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch_geometric.nn import aggr
from torch_geometric.nn.aggr.equilibrium import MomentumOptimizer, ResNetPotential

from cases import assert_near
from equipool.pyg import EquilibriumAggregation, from_pyg


def make_theirs(in_channels=3, out_channels=4, hidden=(7, 5), steps=5, dtype=torch.float32):
    """PyTorch Geometric's layer, no parameter at its initial value."""
    torch.manual_seed(0)
    layer = aggr.EquilibriumAggregation(in_channels, out_channels, list(hidden), grad_iter=steps)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return layer.to(dtype)


def compute_in_float64(layer):
    """PyTorch Geometric starts from float32 zeros, and rounds the first gradient to that."""
    layer.init_output = lambda num_sets: torch.zeros(
        num_sets, layer.output_dim, dtype=torch.float64, requires_grad=True
    )


@pytest.mark.parametrize(
    ("size", "steps", "hidden"),
    [(1, 20, ()), (2, 5, (6,)), (40, 1, (7, 5)), (40, 0, (6,)), (2, 20, (4, 4, 4))],
)
def test_a_single_set_is_given_what_theirs_gives_it(size, steps, hidden):
    x = torch.randn(size, 3)
    theirs = make_theirs(hidden=hidden, steps=steps)
    found = from_pyg(theirs)(x)
    assert found.dtype == torch.float32
    assert_near(found, theirs(x), 1e-5)
    assert bool(found.any()) == (steps > 0)

    theirs = make_theirs(hidden=hidden, steps=steps, dtype=torch.float64)
    ours = from_pyg(theirs)
    compute_in_float64(theirs)
    assert_near(ours(x.double()), theirs(x.double()), 1e-12)


def test_gradients_are_theirs():
    """Also of the learned scalars, whose storage differs, so that training goes on as it was."""
    theirs = make_theirs(dtype=torch.float64)
    ours = from_pyg(theirs)
    compute_in_float64(theirs)
    x = torch.randn(6, 3).double()
    for layer in (theirs, ours):
        layer(x).square().sum().backward()
    potential, named = ours.potential, theirs.potential
    pairs = [
        (ours.regularizer.raw_weight.raw, theirs.lamb),
        (ours.solver.raw_learning_rate.raw, theirs.optimizer._lr),
        (ours.solver.raw_momentum.raw, theirs.optimizer._mom),
        (potential.last_linear.weight, named.layers[2].weight),
        (potential.last_skip.weight, named.res_trans[2].weight),
        (potential.skips[0].bias, named.res_trans[0].bias),
    ]
    for i in range(2):
        pairs.append((potential.skips[i].weight, named.res_trans[i].weight))
        for mine, other in zip((potential.linears, potential.norms), named.layers[i], strict=False):
            pairs += [(mine[i].weight, other.weight), (mine[i].bias, other.bias)]
    for mine, other in pairs:
        assert other.grad.any()
        assert_near(mine.grad, other.grad.reshape(mine.shape), 1e-12)
    unlearned = {name for name, p in ours.named_parameters() if p.grad is None}
    assert unlearned == set()
    assert len({id(mine) for mine, _ in pairs}) == len(list(ours.parameters()))


def test_in_a_batch_a_set_is_given_what_theirs_gives_it_alone():
    theirs = make_theirs(steps=10)
    ours = from_pyg(theirs)
    x, index = torch.randn(64, 3), torch.arange(16).repeat(4)
    alone = torch.cat([theirs(x[index == i]) for i in range(16)])
    assert_near(ours(x, index), alone, 1e-5)
    # theirs divides the regularizer by the number of sets
    assert (theirs(x, index) - alone).abs().max() > 0.1 * alone.abs().max()


@pytest.mark.parametrize(
    ("dtype", "training"), [(torch.bfloat16, True), (torch.float32, False), (torch.float64, True)]
)
def test_dtype_and_mode_are_kept(dtype, training):
    theirs = make_theirs(dtype=dtype).train(training)
    ours = from_pyg(theirs)
    assert {module.training for module in ours.modules()} == {training}
    assert {parameter.dtype for parameter in ours.parameters()} == {dtype}
    momentum = torch.sigmoid(theirs.optimizer._mom.double()).item()
    assert ours.solver.momentum.item() == pytest.approx(momentum, rel=1e-6)  # not that of bfloat16
    assert ours(torch.randn(5, 3).to(dtype)).isfinite().all()


def test_an_optimizer_of_theirs_with_other_settings():
    """What is frozen stays frozen."""
    theirs = make_theirs()
    theirs.optimizer = MomentumOptimizer(learning_rate=-1.0, momentum=0.2, learnable=False)
    theirs.potential.layers[0][0].requires_grad_(False)
    ours = from_pyg(theirs)
    x = torch.randn(6, 3)
    assert_near(ours(x), theirs(x), 1e-5)
    frozen = {name for name, p in ours.named_parameters() if not p.requires_grad}
    assert frozen == {
        "solver.raw_learning_rate.raw", "solver.raw_momentum.raw", "potential.linears.0.weight",
        "potential.linears.0.bias",
    }  # fmt: skip


class Subclass(aggr.EquilibriumAggregation):
    pass


@pytest.mark.parametrize(
    "layer", [aggr.SumAggregation(), EquilibriumAggregation(3, 4), Subclass(3, 4, [5]), {}]
)
def test_another_layer_is_refused(layer):
    with pytest.raises(TypeError, match=f"layer is a .*{type(layer).__name__}, expected"):
        from_pyg(layer)


class OtherPotential(ResNetPotential):
    pass


def assign(path, value):
    """Gives a part of the layer this value."""
    *parts, last = path.split(".")
    return lambda layer: setattr(layer.get_submodule(".".join(parts)), last, value)


def fill(path, value):
    return lambda layer: nn.init.constant_(layer.get_parameter(path), value)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (assign("potential", OtherPotential(7, 1, [5])), ValueError, "potential is OtherPot"),
        (assign("optimizer", nn.ReLU()), ValueError, "optimizer is ReLU"),
        (assign("potential.layers.0.2", nn.ReLU()), ValueError, "potential is"),
        (assign("potential.layers.1.1.eps", 0.1), ValueError, "potential is"),
        (assign("softplus", nn.Softplus(beta=2)), ValueError, "softplus is .*beta=2"),
        (lambda layer: nn.utils.parametrizations.weight_norm(layer.potential.layers[2]),
         ValueError, "potential is"),
        (lambda layer: prune.l1_unstructured(layer.potential.layers[2], "weight", amount=1),
         AttributeError, "weight"),
        (fill("optimizer._mom", 40), ValueError, "momentum is 1.0"),
        (fill("lamb", -200), ValueError, "weight is 0.0"),
        (fill("optimizer._lr", float("nan")), ValueError, "learning_rate is nan"),
    ],
)  # fmt: skip
def test_what_is_not_theirs_is_named(change, error, message):
    layer = make_theirs()
    change(layer)
    with pytest.raises(error, match=message):
        from_pyg(layer)
