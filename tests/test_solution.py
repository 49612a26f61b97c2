"""What a solve says about itself, one set's trouble kept from the others, and recording."""

import threading

import pytest
import torch
from torch import nn

import equipool
from cases import Quadratic, flatten, make_layer, make_sets
from equipool import EquilibriumAggregation, FixedSteps, LearnedStart, Nesterov

SIZES = (3, 1, 0, 6, 2)


def quadratic(num_steps, learning_rate=0.1):
    return EquilibriumAggregation(
        3, 3, potential=Quadratic(), regularizer=0,
        solver=Nesterov(learning_rate, 0.5), steps=num_steps, scaling="mean",
    )  # fmt: skip


@pytest.fixture
def batch():
    return flatten(make_sets(SIZES))


def test_fields_and_shapes(batch):
    solution = make_layer().solve(*batch)
    assert solution.y.shape == (5, 4)
    for name in ("energy", "residual", "converged", "finite"):
        assert getattr(solution, name).shape == (5,), name
    assert solution.converged.dtype == solution.finite.dtype == torch.bool
    assert solution.occupied.tolist() == [size > 0 for size in SIZES]
    assert solution.aux_loss.shape == ()
    assert (solution.max_steps, solution.num_steps.tolist()) == (6, [6] * 5)
    assert not solution.fallback.any()
    with pytest.raises(RuntimeError, match="trajectory=True"):
        _ = solution.trajectory
    assert torch.equal(solution.y, make_layer()(*batch))


def test_energy_and_residual_are_those_at_y(batch):
    layer = make_layer()
    solution = layer.solve(*batch)
    y = solution.y.detach().requires_grad_()
    energy = layer.energy(*batch)(y)
    torch.testing.assert_close(solution.energy, energy, rtol=1e-12, atol=1e-12)
    (gradient,) = torch.autograd.grad(energy.sum(), y)
    torch.testing.assert_close(solution.residual, gradient.abs().amax(-1), rtol=1e-9, atol=1e-12)
    assert not solution.residual.requires_grad


def test_tolerance_is_the_border():
    x, index = flatten(make_sets((3, 5), dtype=torch.float32))
    layer = quadratic(10)
    residual = layer.solve(x, index).residual
    layer.steps = FixedSteps(10, tolerance=residual.max().item())
    assert layer.solve(x, index).converged.all()
    layer.steps = FixedSteps(10, tolerance=residual.min().item() / 2)
    assert not layer.solve(x, index).converged.any()


@pytest.mark.parametrize("num_steps", [0, 1, 5])
def test_trajectory(batch, num_steps):
    layer = make_layer(start=LearnedStart(4, 0.5), num_steps=num_steps)
    solution = layer.solve(*batch, trajectory=True)
    assert solution.trajectory.shape == (num_steps + 1, 5, 4)
    assert torch.equal(solution.trajectory[0], layer.start.y.expand(5, -1))
    assert torch.equal(solution.trajectory[-1], solution.y)
    for steps in range(num_steps):
        layer.steps = steps
        torch.testing.assert_close(layer(*batch), solution.trajectory[steps], rtol=0, atol=1e-12)


def test_trajectory_of_a_masked_batch(batch):
    x, index = batch
    solution = make_layer().solve(x, index, mask=index != 3, trajectory=True)
    assert solution.trajectory.shape == (7, 5, 4)
    assert torch.equal(solution.trajectory[-1], solution.y)


class Model(nn.Module):
    """Two equilibrium layers, buried."""

    def __init__(self):
        super().__init__()
        self.first = make_layer()
        self.second = make_layer(4, 2, (6, 3))
        self.head = nn.Linear(2, 1).double()

    def forward(self, x, index):
        return self.head(self.second(self.first(x, index)))


def test_record_collects_every_layer_in_order(batch):
    """Each once, without a change; `solve` returns its solution, and is not recorded."""
    model = Model()
    plain = model(*batch)
    with equipool.record(diagnostics=True) as solutions:
        assert torch.equal(model(*batch), plain)
        model.first.solve(*batch)
        nn.Linear(2, 2)(torch.zeros(1, 2))
    model(*batch)
    assert [s.y.shape for s in solutions] == [(5, 4), (1, 2)]
    expected = model.first.solve(*batch)
    assert torch.equal(solutions[0].y, expected.y)
    assert torch.equal(solutions[0].energy, expected.energy)
    assert torch.equal(solutions[0].converged, expected.converged)
    assert torch.equal(solutions.aux_loss, solutions[0].aux_loss + solutions[1].aux_loss)
    solutions.aux_loss.backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == name.startswith("head"), name
    assert model.second.potential.linears[0].weight.grad.abs().max() > 0


def test_record_nests(batch):
    layer = make_layer()
    with equipool.record(diagnostics=True) as outer:
        layer(*batch)
        with equipool.record(diagnostics=False) as inner:
            layer(*batch)
        layer(*batch)
    assert (len(outer), len(inner)) == (3, 1)
    assert torch.equal(outer[0].energy, outer[2].energy)
    (short,) = inner  # without diagnostics
    for name in ("energy", "residual", "converged", "error_bound"):
        with pytest.raises(RuntimeError, match="diagnostics=True"):
            getattr(short, name)
    assert short.finite.all()
    assert torch.equal(short.y, outer[1].y)
    assert short.aux_loss > 0
    with equipool.record(diagnostics=True) as nothing:
        pass
    assert (nothing, nothing.aux_loss) == ([], 0)


def test_record_after_an_error(batch):
    """A block that was left by an error records no more."""
    layer = make_layer()

    def fail():
        with equipool.record(diagnostics=True) as solutions:
            layer(*batch)
            raise KeyError(len(solutions))

    with pytest.raises(KeyError, match="1"):
        fail()
    with equipool.record(diagnostics=True) as solutions:
        layer(*batch)
    assert len(solutions) == 1


def test_each_thread_records_its_own_layers():
    """Blocks that are open in two threads at the same time do not see each other's solves."""
    layer = quadratic(3)
    batches = [torch.randn(n, 3) for n in (2, 5)]
    both_open, found = threading.Barrier(2), {}

    def run(number):
        with equipool.record(diagnostics=True) as solutions:
            both_open.wait(timeout=60)
            layer(batches[number])
            both_open.wait(timeout=60)
        found[number] = [solution.y for solution in solutions]

    threads = [threading.Thread(target=run, args=(number,)) for number in (0, 1)]
    with equipool.record(diagnostics=True) as outside:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not outside
    for number, batch in enumerate(batches):
        (y,) = found[number]
        assert torch.equal(y, layer(batch))
