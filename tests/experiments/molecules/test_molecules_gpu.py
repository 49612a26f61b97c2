"""The task on molecules on a GPU."""

import dataclasses

import pytest
import torch

from equipool.experiments.molecules.task import MoleculeTask
from equipool.training import Shard
from generated_molecules import generated, serve

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CUDA = torch.device("cuda")
SMALL = MoleculeTask(
    "sum", batch_size=16, width=32, depth=3, dropout=0.2, potential=(64, 32, 8), inner_steps=4,
    local_steps=3,
)  # fmt: skip
CASES = {
    "sum": {},
    "pna": {"aggregation": "pna", "convolution": "gcn"},
    "set-transformer": {"aggregation": "set-transformer"},
    "both": {"aggregation": "equilibrium", "local_aggregation": "equilibrium"},
}


@pytest.fixture(autouse=True)
def molecules(monkeypatch):
    found = generated(200)
    serve(found, monkeypatch)
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_loss_is_that_of_the_cpu(case):
    task = dataclasses.replace(SMALL, **CASES[case])
    torch.manual_seed(0)
    network = task.network().eval()
    here, there = (
        task.loss(
            network.to(device),
            {name: value[0] for name, value in task.batches(0, 1, device, Shard()).items()},
        )
        for device in (torch.device("cpu"), CUDA)
    )
    torch.testing.assert_close(there.value.cpu(), here.value, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("convolution", ["gin", "gcn"])
def test_the_atoms_and_their_gradients_are_the_same_every_time(convolution, molecules):
    task = dataclasses.replace(SMALL, convolution=convolution)
    network = task.network().to(CUDA)
    batch = molecules.to(CUDA).batch(torch.arange(150, device=CUDA))
    grads = []
    for _ in range(3):
        torch.manual_seed(0)
        atoms = network.embed(batch)
        grads.append(torch.autograd.grad(atoms.square().sum(), network.convolutions.parameters()))
    for other in grads[1:]:
        assert all(torch.equal(a, b) for a, b in zip(grads[0], other, strict=True))
