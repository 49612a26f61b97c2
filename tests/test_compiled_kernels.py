"""Every kernel compiles for a GPU, with what steps of training launch it with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from equipool import EquilibriumAggregation, ResNetPotential
from equipool.experiments.molecules.network import norm
from equipool.experiments.molecules.network.norm import MaskedBatchNorm, RealRows
from equipool.experiments.registry import MedianTask
from equipool.ops import derivatives, momentum, ranges
from equipool.ops.resnet_gradient import implementations
from equipool.training import TrainingConfig, optimizer
from equipool.training.devices import Accelerator
from equipool.training.step import NUMBERS, TrainStep
from forced_kernels import force_kernels
from kernel_launches import jitted, launches

SERVED = (implementations, derivatives, momentum, norm, ranges, optimizer)
HERE = Path(__file__).parent

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are run here"),
]


@pytest.fixture
def forced(monkeypatch):
    force_kernels(monkeypatch, *SERVED)


def step(**fields):
    """A step of the median's network, as the engine takes it."""
    task = MedianTask(embedding=4, batch_size=2, **fields)
    config = TrainingConfig(steps=10)
    place = Accelerator("cpu", config.precision)
    batch = {k: v[0] for k, v in task.batches(0, 1, place.device, place.shard).items()}
    taken = TrainStep(task, config, place, batch)
    taken(batch | {NUMBERS: torch.tensor(taken.numbers(0))})


def short_kind():
    """A layer in bfloat16, of odd widths."""
    potential = ResNetPotential(5, 3, (40, 24, 6))
    layer = EquilibriumAggregation(5, 3, potential=potential, num_steps=2)
    with torch.autocast("cpu", torch.bfloat16):
        solution = layer.solve(torch.randn(20, 5), torch.arange(20) // 7, dim_size=3)
        (solution.y.sum() + solution.aux_loss).backward()


def normalise(dtype, relu):
    x = torch.randn(40, 70, dtype=dtype, requires_grad=True)
    MaskedBatchNorm(70)(x, RealRows.of(torch.ones(40, dtype=torch.bool)), relu).sum().backward()


def test_kernels_compile_for_a_gpu(forced, monkeypatch, tmp_path):
    with launches(monkeypatch) as found:
        step()
        restrained = {"name": "nesterov", "max_step": 0.5, "curvature_safe": True}
        step(solver=restrained, potential_output=8)
        short_kind()
        normalise(torch.float32, relu=False)
        normalise(torch.bfloat16, relu=True)
    apart = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}  # nothing is there yet
    del apart["TRITON_INTERPRET"]
    done = subprocess.run(
        [sys.executable, HERE / "compile_launches.py"],
        input="\n".join(sorted(found)), env=apart, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    compiled = {tuple(line.split()[:2]) for line in done.stdout.splitlines()}
    assert len(done.stdout.splitlines()) == len(found)
    assert compiled == jitted("equipool")
