"""Energies for solvers to minimise, as plainly as they can be written."""

import torch


class Function:
    """An objective from a function of y and of tensors that have a row for each of its rows."""

    def __init__(self, function, *rows, bounds=None):
        self.function, self.rows, self.known_bounds = function, rows, bounds

    def value(self, y):
        return self.function(y, *self.rows)

    def gradient(self, y):
        return torch.func.grad(lambda y: self.value(y).sum())(y)

    def hessian(self, y):
        product = torch.func.vjp(self.gradient, y.detach())[1]
        return lambda direction: product(direction)[0].detach()

    def bounds(self):
        return self.known_bounds

    def restrict(self, rows):
        return Function(self.function, *(tensor[rows] for tensor in self.rows))


def quadratic(y, matrix, center):
    """`(y - c) A (y - c) / 2`."""
    away = y - center
    return (away * torch.einsum("bij,bj->bi", matrix, away)).sum(-1) / 2


def rugged(y, stiffness, frequency, height):
    """A bowl with waves on it that are steeper than itself: minima everywhere."""
    waves = height * (1 - torch.cos(frequency * y))
    return (stiffness * y.square() + waves).sum(-1)


def banana(y, steepness):
    """Rosenbrock's valley: its minimum is at (1, 1)."""
    return (1 - y[:, 0]).square() + steepness * (y[:, 1] - y[:, 0].square()).square()


def cliff(y, height):
    """Not a number beyond 1, and steep before it."""
    return (-height * torch.log(1 - y) - 20 * y).sum(-1)


def random_quadratic(num_rows, channels, condition, seed, dtype=torch.float64):
    """Symmetric matrices with eigenvalues from 1 to `condition`, both met, and centers."""
    generator = torch.Generator().manual_seed(seed)
    draw = {"generator": generator, "dtype": torch.float64}
    basis = torch.linalg.qr(torch.randn(num_rows, channels, channels, **draw))[0]
    exponents = torch.rand(num_rows, channels, **draw)
    exponents[:, 0], exponents[:, -1] = 0, 1
    matrix = basis @ torch.diag_embed(condition**exponents) @ basis.mT
    center = torch.randn(num_rows, channels, **draw)
    return Function(quadratic, matrix.to(dtype), center.to(dtype))


def random_rugged(num_rows, channels, scale, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)

    def spread():
        exponents = torch.randn(num_rows, channels, generator=generator, dtype=torch.float64)
        return (10**exponents).to(dtype)

    return Function(rugged, scale * spread(), spread(), scale * spread())


def states_of(solver, objective, y, num_steps):
    """The states from before the first step to after the last."""
    states = [solver.init(y, num_steps, objective)]
    for _ in range(num_steps):
        states.append(solver.step(objective, states[-1]))
    return states


def assert_energy_never_rises(objective, ys):
    """No y's energy exceeds the lowest before it by more than rounding."""
    energies = torch.stack([objective.value(y) for y in ys])
    lowest = energies.cummin(0).values[:-1]
    rounding = 64 * torch.finfo(energies.dtype).eps * lowest.abs()
    assert bool(energies.isfinite().all())
    assert bool((energies[1:] <= lowest + rounding).all())
