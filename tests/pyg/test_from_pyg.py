"""Reading PyTorch Geometric's own layer."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch_geometric.nn import aggr
from torch_geometric.nn.aggr.equilibrium import MomentumOptimizer, ResNetPotential

import equipool
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


@pytest.mark.parametrize("hidden", [(), (6, 5, 4)])
def test_the_energy_is_theirs(hidden):
    theirs = make_theirs(hidden=hidden, dtype=torch.float64)
    x, y = torch.randn(6, 3).double(), torch.randn(1, 4).double()
    expected = theirs.energy(x, y, torch.zeros(6, dtype=torch.long))
    assert_near(from_pyg(theirs).energy(x)(y), expected, 1e-12)


def test_weights_are_copied_not_shared():
    theirs = make_theirs()
    ours = from_pyg(theirs)
    x = torch.randn(6, 3)
    expected = theirs(x).detach()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(1.0)
    assert torch.equal(theirs(x), expected)


def test_what_is_frozen_stays_frozen():
    theirs = make_theirs()
    theirs.optimizer._lr.requires_grad_(False)
    theirs.potential.layers[0].requires_grad_(False)
    ours = from_pyg(theirs)
    frozen = {name for name, p in ours.named_parameters() if not p.requires_grad}
    assert frozen == {
        "solver.raw_learning_rate.raw",
        "potential.linears.0.weight",
        "potential.linears.0.bias",
        "potential.norms.0.weight",
        "potential.norms.0.bias",
    }


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
    theirs = make_theirs()
    theirs.optimizer = MomentumOptimizer(learning_rate=-1.0, momentum=0.2, learnable=False)
    ours = from_pyg(theirs)
    x = torch.randn(6, 3)
    assert_near(ours(x), theirs(x), 1e-5)
    assert not any(p.requires_grad for p in ours.solver.parameters())


def test_reset_parameters_draws_the_potential_anew():
    ours = from_pyg(make_theirs())
    weight, step = ours.potential.last_skip.weight.clone(), ours.solver.learning_rate.clone()
    norm = ours.potential.norms[0]
    ours.reset_parameters()
    assert not torch.equal(ours.potential.last_skip.weight, weight)
    assert torch.equal(norm.weight, torch.ones_like(norm.weight))
    assert ours.solver.learning_rate == step


# What cannot be read.


class Subclass(aggr.EquilibriumAggregation):
    pass


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (aggr.SumAggregation(), r"torch_geometric\.nn\.aggr\.basic\.SumAggregation"),
        (equipool.EquilibriumAggregation(3, 4), r"equipool\.aggregation\.EquilibriumAggregation"),
        (EquilibriumAggregation(3, 4), r"equipool\.pyg\.adapter\.EquilibriumAggregation"),
        (Subclass(3, 4, [5]), r"test_from_pyg\.Subclass"),
        ({}, r"builtins\.dict"),
    ],
)
def test_another_layer_is_refused(layer, name):
    expected = r"expected a torch_geometric\.nn\.aggr\.EquilibriumAggregation; subclasses"
    with pytest.raises(TypeError, match=f"layer is a {name}, {expected}"):
        from_pyg(layer)


class OtherPotential(ResNetPotential):
    pass


class OtherOptimizer(MomentumOptimizer):
    pass


def assign(path, value):
    """Gives a part of the layer this value."""
    *parts, last = path.split(".")
    return lambda layer: setattr(layer.get_submodule(".".join(parts)), last, value)


def fill(path, value):
    return lambda layer: nn.init.constant_(layer.get_parameter(path), value)


def output_layer(change):
    return lambda layer: change(layer.potential.layers[2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (assign("potential", OtherPotential(7, 1, [5])),
         r"layer\.potential is a .*OtherPotential, expected a torch"),
        (assign("optimizer", OtherOptimizer()),
         r"layer\.optimizer is a .*OtherOptimizer, expected a torch"),
        (assign("potential.res_trans.1", nn.Identity()),
         r"layer\.potential\.res_trans\.1 is a torch.*Identity, expected a .*Linear"),
        (assign("potential.layers.0.2", nn.ReLU()),
         r"layer\.potential\.layers\.0\.2 is .*ReLU\(\), expected .*Tanh\(\)"),
        (assign("potential.layers.1.1.eps", 0.1),
         r"layer\.potential\.layers\.1\.1 is .*eps=0.1.*, expected .*eps=1e"),
        (assign("softplus", nn.Softplus(beta=2)),
         r"layer\.softplus is .*beta=2.*, expected .*beta=1"),
        (assign("potential.layers.2", nn.Linear(5, 2)),
         r"layer\.potential\.layers\.2 is .*out_features=2,.*, expected .*=1,"),
        (lambda layer: layer.potential.layers.append(nn.Linear(1, 1)),
         r"layer\.potential\.layers\.3 is .*Linear.*, expected nothing"),
        (assign("reg", lambda y: y.sum()), r"layer\.reg was replaced"),
        (assign("potential.forward", lambda *arguments: 0),
         r"layer\.potential\.forward was replaced"),
        (output_layer(nn.utils.parametrizations.weight_norm),
         r"layer\.potential\.layers\.2 is .*ParametrizedLinear"),
        (output_layer(lambda linear: prune.l1_unstructured(linear, "weight", amount=1)),
         r"parameters \['potential\.layers\.2\.weight'.*weight_mask.*; first remove"),
        (lambda layer: layer.potential.double(),
         "of torch.float32 on cpu and torch.float64 on cpu, expected one kind"),
        (fill("optimizer._mom", 40),
         r"layer\.optimizer\._mom is 40, and its sigmoid 1 in .* less than 1"),
        (fill("lamb", -200), r"layer\.lamb is -200, and its softplus 0 in .* more than 0"),
        (fill("optimizer._lr", float("nan")),
         r"layer\.optimizer\._lr is nan, and its softplus nan"),
    ],
)  # fmt: skip
def test_what_is_not_theirs_is_named(change, message):
    layer = make_theirs()
    from_pyg(layer)
    change(layer)
    with pytest.raises(ValueError, match=message):
        from_pyg(layer)
