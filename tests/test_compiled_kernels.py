"""Every kernel compiles for a GPU, with what steps of training launch it with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from equipool import (
    EquilibriumAggregation,
    LocationPotential,
    Nesterov,
    ResNetPotential,
    functional,
)
from equipool.ops import derivatives, location, selection
from equipool.ops.resnet_gradient import torch as torch_gradient
from forced_kernels import force_kernels
from kernel_launches import jitted, launches

HERE = Path(__file__).parent

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are run here"),
]


@pytest.fixture
def forced(monkeypatch):
    force_kernels(monkeypatch, torch_gradient, derivatives, location, selection)


def step(dtype=torch.float32, **settings):
    """A step of training of a layer of odd widths."""
    potential = ResNetPotential(5, 3, (40, 24, 6))
    layer = EquilibriumAggregation(5, 3, potential=potential, steps=2, **settings)
    x = torch.randn(20, 5, requires_grad=True)
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        solution = layer.solve(x, torch.arange(20) // 7, dim_size=3)
        (solution.y.sum() + solution.aux_loss).backward()


def exact_step(heads, regularizer):
    """The same with a minimum in closed form."""
    potential = LocationPotential(5, 7, heads=heads)
    layer = EquilibriumAggregation(5, 7, potential=potential, regularizer=regularizer)
    layer(
        torch.randn(20, 5, requires_grad=True), torch.arange(20) // 7, dim_size=3
    ).sum().backward()


def test_kernels_compile_for_a_gpu(forced, monkeypatch, tmp_path):
    with launches(monkeypatch) as found:
        step()
        step(dtype=torch.bfloat16)
        step(solver=Nesterov(max_step=0.5, curvature_safe=True))
        exact_step(heads=0, regularizer=None)
        exact_step(heads=2, regularizer=0.1)
        functional.median(torch.randn(20, 5))
        functional.median(torch.randn(20, 5), weight=torch.rand(20))
    apart = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}  # nothing is there yet
    del apart["TRITON_INTERPRET"]
    done = subprocess.run(
        [sys.executable, HERE / "compile_launches.py"],
        input="\n".join(sorted(found)), env=apart, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    compiled = {tuple(line.split()[:2]) for line in done.stdout.splitlines()}
    assert len(done.stdout.splitlines()) == len(found)
    assert compiled == jitted("equipool.ops")
