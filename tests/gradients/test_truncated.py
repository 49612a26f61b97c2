"""Gradients through the last steps: the same output, and which part of the gradient is left."""

import pytest
import torch

import equipool
from cases import assert_near, flatten, make_layer, make_sets
from equipool import Implicit, LearnedStart, Nesterov, ToTolerance, Truncated, Unrolled

SIZES = (2, 0, 3)
WAYS = {
    "one step": Truncated(1),
    "truncated": Truncated(3),
    "more than there are": Truncated(99),
    "implicit": Implicit(),
}
SOLVERS = {
    "nesterov": Nesterov(0.05, 0.7),
    "heavy ball": equipool.GradientDescent(0.05, 0.7),
    "gradient descent": equipool.GradientDescent(0.05),
    "safeguarded": equipool.SafeguardedNesterov(),
    "polished": equipool.Newton(after=Nesterov(0.05, 0.7), num_steps=2),
}
each_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def run(layer, way, sizes=SIZES, loss=lambda solution: solution.y.sin().sum()):
    """The solution, and the gradients by x and by every parameter."""
    layer.differentiation = way
    layer.zero_grad()
    x, index = flatten(make_sets(sizes))
    x.requires_grad_()
    solution = layer.solve(x, index, dim_size=len(sizes), trajectory=True)
    loss(solution).backward()
    return solution, {"x": x.grad, **{name: p.grad for name, p in layer.named_parameters()}}


def together(gradients):
    """What belongs to the minimum, as one vector: the solver's own numbers do not."""
    return torch.cat([g.flatten() for name, g in gradients.items() if "solver" not in name])


@each_way
@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
@pytest.mark.parametrize("num_steps", [0, 1, 3, 8])
def test_the_output_is_that_of_unrolling_to_the_bit(num_steps, solver, way):
    layer = make_layer(num_steps=num_steps, start=LearnedStart(4, 0.3))
    layer.solver = solver.double()
    expected, _ = run(layer, Unrolled())
    found, _ = run(layer, way)
    assert torch.equal(found.y, expected.y)
    assert torch.equal(found.trajectory, expected.trajectory)
    assert torch.equal(found.num_steps, expected.num_steps)
    torch.testing.assert_close(found.aux_loss, expected.aux_loss)
    with torch.no_grad():
        x, index = flatten(make_sets(SIZES))
        assert torch.equal(layer(x, index, dim_size=len(SIZES)), expected.y)


@pytest.mark.parametrize("num_steps", [8, 9])
@pytest.mark.parametrize(
    "loss", [lambda s: s.y.sin().sum(), lambda s: s.aux_loss], ids=["y", "aux_loss"]
)
def test_as_many_steps_as_were_taken_are_all_of_them(loss, num_steps):
    layer = make_layer(num_steps=8, start=LearnedStart(4, 0.3))
    _, expected = run(layer, Unrolled(), loss=loss)
    _, found = run(layer, Truncated(num_steps), loss=loss)
    for name, gradient in expected.items():
        assert torch.equal(found[name], gradient), name


def naive_truncated(layer, x, num_steps):
    """The listing's loop for one set, cut before the last steps: y, velocity and the point where
    the next gradient is taken are constants."""
    learning_rate, momentum = layer.solver.learning_rate, layer.solver.momentum
    y = v = torch.zeros(1, layer.out_channels, dtype=x.dtype)
    for step in range(layer.steps.max_steps):
        point = y + momentum * v
        if step == layer.steps.max_steps - num_steps:
            y, v, point = y.detach(), v.detach(), point.detach()
        if not point.requires_grad:
            point.requires_grad_()
        energy = layer.energy(x)(point).sum()
        (g,) = torch.autograd.grad(energy, point, create_graph=True)
        v = momentum * v - learning_rate * g
        y = y + v
    return y


@pytest.mark.parametrize("num_steps", [1, 2, 5])
def test_against_a_loop_that_is_cut(num_steps):
    layer = make_layer(num_steps=6, factored=False)
    x = make_sets((4,))[0].requires_grad_()
    inputs = [x, *layer.parameters()]
    expected = torch.autograd.grad(naive_truncated(layer, x, num_steps).sin().sum(), inputs)
    layer.differentiation = Truncated(1) if num_steps == 1 else Truncated(num_steps)
    found = torch.autograd.grad(layer(x).sin().sum(), inputs)
    assert any(float(g.abs().max()) > 1e-3 for g in found)
    for a, b in zip(found, expected, strict=True):
        assert_near(a, b, 1e-12)


def convex_layer(steps=400, **options):
    """Strongly convex, and solved to the last digit."""
    torch.manual_seed(0)
    layer = equipool.EquilibriumAggregation(
        3, 4, potential=equipool.ConvexPotential(3, 4, hidden=(6, 5)), steps=steps,
        regularizer=equipool.SquaredNorm(0.3), solver=Nesterov(0.2, 0.3), **options,
    )  # fmt: skip
    return layer.double()


@each_way
def test_solved_to_a_tolerance_the_output_is_that_of_unrolling(way):
    """The steps that a gradient passes through move no set away from where it stopped."""
    layer = convex_layer(ToTolerance(1e-6, 300))
    layer.solver = Nesterov(0.1, 0.95).double()  # swings: what stops must not go on
    expected, _ = run(layer, Unrolled())
    found, _ = run(layer, way)
    assert expected.converged.all()
    assert found.converged.all()
    assert torch.equal(found.num_steps, expected.num_steps)
    assert found.num_steps.max() < 300
    assert_near(found.y, expected.y, 1e-13)


def test_solved_to_a_tolerance_the_gradient_is_that_of_further_steps():
    layer = convex_layer(ToTolerance(1e-10, 500))
    _, exact = run(layer, Implicit("cholesky"), (3, 5, 2))
    _, found = run(layer, Truncated(200), (3, 5, 2))
    assert_near(together(found), together(exact), 1e-6)
    _, one = run(layer, Truncated(1), (3, 5, 2))
    assert (together(one) - together(exact)).norm() > 0.1 * together(exact).norm()


EVERY_SOLVER = {
    **SOLVERS,
    "restrained": equipool.Nesterov(0.05, 0.7, max_step=0.5, curvature_safe=True),
    "strongly convex": equipool.StronglyConvexNesterov(),
    "newton": equipool.Newton(),
    "polished safeguarded": equipool.Newton(after=equipool.SafeguardedNesterov(), num_steps=1),
}


@pytest.mark.parametrize("way", [Truncated(1), Truncated(4), Implicit()], ids=repr)
@pytest.mark.parametrize("steps", [6, ToTolerance(max_steps=6)])
@pytest.mark.parametrize("solver", EVERY_SOLVER.values(), ids=EVERY_SOLVER)
def test_the_output_of_an_empty_set_is_its_start_whatever_the_solver(solver, steps, way):
    for value in (0.0, 0.3):
        layer = convex_layer(steps, start=LearnedStart(4, value))
        layer.solver, layer.differentiation = solver.double(), way
        x, index = flatten(make_sets((3, 0, 2, 0)))
        y = layer(x, index, dim_size=4)
        for rows, expected in (([1, 3], 2.0), ([0, 2], 0.0)):  # the others have forgotten theirs
            (gradient,) = torch.autograd.grad(y[rows].sum(), layer.start.y, retain_graph=True)
            torch.testing.assert_close(gradient, torch.full_like(gradient, expected))


class Kicked(equipool.GradientDescent):
    """Learns the velocity that a search begins with, which its last steps know nothing of."""

    def __init__(self, learning_rate, momentum):
        super().__init__(learning_rate, momentum)
        self.kick = torch.nn.Parameter(torch.ones(()))

    def init(self, y, num_steps, objective):
        state = super().init(y, num_steps, objective)
        return state._replace(velocity=self.kick * torch.ones_like(y))


@pytest.mark.parametrize("way", [*WAYS.values(), Unrolled()], ids=repr)
def test_every_parameter_receives_a_gradient(way):
    """What a parameter cannot change has the gradient 0, not none: DDP waits for one."""
    kicked = make_layer()
    kicked.solver = Kicked(0.05, 0.7).double()
    learned, short = make_layer(start=LearnedStart(4)), make_layer(num_steps=1)
    for layer in (
        learned, short, kicked, convex_layer(100), convex_layer(ToTolerance(max_steps=90)),
    ):  # fmt: skip
        for sizes in ((3, 5), (0, 0)):
            _, gradients = run(layer, way, sizes)
            for name, gradient in gradients.items():
                assert gradient is not None, name
                assert torch.isfinite(gradient).all(), name


@each_way
@pytest.mark.parametrize("steps", [12, ToTolerance(1e-1, 50)])
def test_the_auxiliary_loss_trains_everything(steps, way):
    layer = make_layer()
    layer.steps = steps
    _, gradients = run(layer, way, loss=lambda solution: solution.aux_loss)
    for name, gradient in gradients.items():
        # Where a single step takes its gradient, the solver has had no part in.
        trained = not (name.startswith("solver") and way is WAYS["one step"])
        assert (gradient is not None and gradient.abs().max() > 0) == trained, name


def saved_bytes(layer):
    """Bytes of the tensors that the graph of a forward pass holds."""
    held = {}

    def pack(tensor):
        held[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    x, index = flatten(make_sets((20, 30, 10)))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = layer(x, index)
    assert y.requires_grad
    return sum(held.values())


@each_way
def test_memory_does_not_grow_with_the_steps(way, monkeypatch):
    # What the first steps of a solve keep while there is room would hide the rest.
    monkeypatch.setattr("equipool.ops.resnet_gradient.torch.KEPT_FLOATS", 0)
    way = Truncated(5) if way is WAYS["more than there are"] else way
    few, many = (make_layer(num_steps=num_steps) for num_steps in (5, 50))
    assert saved_bytes(many) > 2 * saved_bytes(few)  # unrolled
    few.differentiation = many.differentiation = way
    assert 0 < saved_bytes(many) <= 1.2 * saved_bytes(few)


@each_way
def test_the_output_may_be_changed_in_place(way):
    layer = make_layer()
    x, index = flatten(make_sets((3, 5)))
    layer.differentiation = way
    expected = torch.autograd.grad(layer(x, index).relu().sum(), list(layer.parameters()))
    found = torch.autograd.grad(layer(x, index).relu_().sum(), list(layer.parameters()))
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)
