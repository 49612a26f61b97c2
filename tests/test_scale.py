"""Very long sets and very many of them: right, and within 4 GiB."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.large, pytest.mark.processes]

LIMIT = 4 * 2**30

PRELUDE = """
import resource, torch, equipool
from equipool.reference import aggregate
torch.set_num_threads(1)
torch.manual_seed(0)

def make_layer(num_steps, scaling="log", rate=0.125, factored=True):
    potential = equipool.ResNetPotential(2, 4, (8, 4), factored=factored)
    return equipool.EquilibriumAggregation(
        2, 4, potential=potential, solver=equipool.Nesterov(rate), scaling=scaling,
        steps=num_steps,
    )

def near(found, expected, tolerance):
    scale = expected.abs().amax(-1, keepdim=True)
    assert bool(((found - expected).abs() <= tolerance * scale).all()), (found, expected)

def peak():
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return 1024 * max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""

# Sets of 1, 0, a million and 3 elements. The exact answer is the float64 layer's, which agrees
# with the reference on the small sets and on a sample of a thousand for the large one.
BATCH = """
sizes = torch.tensor([1, 0, 1_000_000, 3])
x, index = torch.randn(int(sizes.sum()), 2), torch.arange(4).repeat_interleave(sizes)
"""

LONG = """
small = [x[:1].double(), x[:0].double(), x[1:1001].double(), x[-3:].double()]
shuffled = torch.randperm(len(index))
for scaling, rate, factored in [
    ("sum", 1e-7, True), ("mean", 0.125, False)
]:
    layer = make_layer(2, scaling, rate, factored)
    with torch.no_grad():
        solution = layer.solve(x[shuffled], index[shuffled])
        exact = layer.double()
        y = exact(x.double(), index)
        reference, _ = aggregate(small, exact)
        near(exact(small[2]), reference[2:3].detach(), 1e-9)
    near(y[[0, 1, 3]], reference[[0, 1, 3]].detach(), 1e-9)
    near(solution.y.double(), y, 1e-5)
    assert bool(solution.finite.all()) and bool((solution.y[1] == 0).all())
print(peak())
"""


MANY = """
layer = make_layer(2)
sizes = torch.randint(0, 4, (100_000,))
x, index = torch.randn(int(sizes.sum()), 2), torch.arange(100_000).repeat_interleave(sizes)
shuffled = torch.randperm(len(index))
y = layer(x[shuffled], index[shuffled], dim_size=100_000)
y.square().mean().backward()
assert y.shape == (100_000, 4)
assert all(bool(torch.isfinite(p.grad).all()) for p in layer.parameters())
assert bool((y[sizes == 0] == 0).all())
used = peak()
sample = torch.cat([torch.tensor([0, 99_999]), torch.randint(0, 100_000, (40,))])
sets = [x[index == i].double() for i in sample]
expected, _ = aggregate(sets, layer.double())
near(y[sample].detach().double(), expected.detach(), 1e-5)
print(used)
"""


@pytest.mark.parametrize("script", [BATCH + LONG, MANY], ids=["long sets", "many sets"])
def test_scale(script):
    """In a process of its own, so that its peak memory is its own."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + script], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < LIMIT
