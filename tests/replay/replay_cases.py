"""Layers and batches for the tests of recorded solves."""

import copy

import torch

from equipool import EquilibriumAggregation, ResNetPotential

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"


def make_layer(potential=None, **settings):
    """On a CPU the potential's own operation reads values, which an emulated graph would keep."""
    torch.manual_seed(0)
    potential = potential or ResNetPotential(3, 4, (8, 4), factored=ON_GPU)
    settings = {"steps": 3} | settings
    return EquilibriumAggregation(3, 4, potential=potential, **settings).to(DEVICE)


def make_batch(num_elements=10, num_sets=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    index = (torch.arange(num_elements) % num_sets).sort().values
    return torch.randn(num_elements, 3, generator=generator).to(DEVICE), index.to(DEVICE)


def outcome(layer, x, *args, of=None, **kwargs):
    """The output and its derivatives by the elements and the parameters."""
    x = x.clone().requires_grad_()
    y = layer(x, *args, **kwargs)
    by = [x, *(p for p in (layer if of is None else of).parameters() if p.requires_grad)]
    return [y.detach(), *torch.autograd.grad(y.square().sum(), by, materialize_grads=True)]


def assert_same(found, expected, tolerance=1e-4):
    for one, other in zip(found, expected, strict=True):
        scale = other.detach().abs().max().clamp(min=1e-6)
        assert float((one - other).detach().abs().max() / scale) < tolerance


def launched(layer):
    """A copy that launches kernel by kernel."""
    other = copy.deepcopy(layer)
    other.cuda_graphs = False
    return other


def check(layer, *args, gradients=True, tolerance=1e-4, **kwargs):
    """It gives what launching gives, with gradients and without."""
    pair = layer, launched(layer)
    if gradients:
        assert_same(*(outcome(one, *args, **kwargs) for one in pair), tolerance)
    with torch.no_grad():
        assert_same(*([one(*args, **kwargs)] for one in pair), tolerance)


def warm_up(layer, times=3):
    """Call it until it replays what can be replayed."""
    for seed in range(times):
        outcome(layer, *make_batch(seed=seed))
        with torch.no_grad():
            layer(*make_batch(seed=seed))
    return layer
