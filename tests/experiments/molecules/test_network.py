"""The networks against OGB's, written plainly, and the laws that hold for every one of them."""

from itertools import cycle, product

import pytest
import reference_networks as plain
import torch

from equipool import EquilibriumAggregation
from equipool.baselines import aggregation_from_name
from equipool.experiments.molecules.network import CONVOLUTIONS, MessageSum, MoleculeNetwork
from generated_molecules import generated, permuted

WIDTH, DEPTH = 6, 3
CONVOLVE = {"gin": plain.gin, "gcn": plain.gcn}
READOUTS = ("sum", "location", "attention", "pna", "set-transformer", "equilibrium")
NETWORKS = list(product(CONVOLVE, ("sum", "equilibrium")))


def pooling(name):
    if name == "equilibrium":
        return EquilibriumAggregation(WIDTH, WIDTH, steps=4)
    return aggregation_from_name(name, WIDTH, WIDTH)


def make_network(convolution="gin", readout="sum", local="sum"):
    """A network in which no parameter has a special value."""
    torch.manual_seed(0)
    pools = [MessageSum() if local == "sum" else pooling(local) for _ in range(DEPTH)]
    network = MoleculeNetwork(
        WIDTH, 2, [CONVOLUTIONS[convolution](WIDTH, pool) for pool in pools], pooling(readout),
        dropout=0.0,
    ).double()  # fmt: skip
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return network


def batch_of(molecules, positions=None):
    return molecules.batch(torch.arange(len(molecules)) if positions is None else positions)


@pytest.mark.parametrize(("convolution", "local"), NETWORKS)
def test_it_is_the_reference(convolution, local):
    network = make_network(convolution, local=local)
    molecules = generated(7)
    pools = [
        sum if local == "sum" else lambda own, layer=layer.aggregation: layer(torch.stack(own))[0]
        for layer in network.convolutions
    ]
    expected = plain.reference_atoms(network, molecules, CONVOLVE[convolution], pools)
    found = network.embed(batch_of(molecules))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
    parameters = [*network.convolutions.parameters(), network.atom_encoder.weight]
    weights = torch.randn_like(expected)
    own, theirs = (
        torch.autograd.grad((atoms * weights).sum(), parameters) for atoms in (found, expected)
    )
    torch.testing.assert_close(own, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("readout", READOUTS)
def test_a_prediction_depends_on_the_molecule_alone(readout):
    """Not on the others, on their order, or on that of its atoms and bonds."""
    molecules = generated(9)
    network = make_network("gcn", readout, "equilibrium").eval()
    together = network(batch_of(molecules)).labels
    order = torch.tensor([4, 0, 8, 0, 1])
    torch.testing.assert_close(network(batch_of(molecules, order)).labels, together[order])
    for position in range(3):
        alone = network(batch_of(molecules, torch.tensor([position]))).labels
        torch.testing.assert_close(alone, together[position : position + 1])
    torch.testing.assert_close(network(batch_of(permuted(molecules))).labels, together)


@pytest.mark.parametrize(
    ("readout", "convolution", "local"),
    [(readout, *cell) for readout, cell in zip(READOUTS, cycle(NETWORKS), strict=False)],
)
def test_every_parameter_has_a_finite_gradient(convolution, local, readout):
    """Without one, several processes would wait for each other in vain."""
    network = make_network(convolution, readout, local)
    prediction = network(batch_of(generated(6)))
    aux = prediction.readout_aux_loss + prediction.local_aux_loss
    assert (prediction.readout_aux_loss > 0) == (readout == "equilibrium")
    assert (prediction.local_aux_loss > 0) == (local == "equilibrium")
    (prediction.labels.square().sum() + aux).backward()
    for name, parameter in network.named_parameters():
        assert not parameter.requires_grad or parameter.grad is not None, name
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


def test_atoms_are_hidden_from_the_readout_in_training_alone():
    network, batch = make_network(), batch_of(generated(9))
    network.atom_dropout = 0.5
    first, second = network(batch).labels, network(batch).labels
    assert not torch.equal(first, second)
    network.eval()
    torch.testing.assert_close(network(batch).labels, network(batch).labels, rtol=0, atol=0)
