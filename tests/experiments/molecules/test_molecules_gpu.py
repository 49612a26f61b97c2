"""The network of molecules on a GPU."""

import pytest
import torch

from equipool.experiments.molecules.task import MoleculeTask
from generated_molecules import generated

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("convolution", ["gin", "gcn"])
def test_atoms_are_those_of_the_cpu_and_their_gradients_the_same_every_time(convolution):
    torch.manual_seed(0)
    task = MoleculeTask("sum", width=32, depth=3, dropout=0.0, convolution=convolution)
    network, molecules, found = task.make_network(2, None), generated(200), []
    for device in ("cpu", "cuda", "cuda", "cuda"):
        batch = molecules.to(device).batch(torch.arange(150, device=device))
        atoms = network.to(device).embed(batch)
        grads = torch.autograd.grad(atoms.square().sum(), [*network.convolutions.parameters()])
        found.append([tensor.cpu() for tensor in (atoms, *grads)])
    cpu, first, *others = found
    torch.testing.assert_close(first[0], cpu[0], rtol=1e-3, atol=1e-3)
    for other in others:
        torch.testing.assert_close(other, first, rtol=0, atol=0)
