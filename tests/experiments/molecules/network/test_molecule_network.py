"""The networks against OGB's, written plainly, and the laws that hold for every one of them."""

import copy
import itertools

import pytest
import reference_networks as plain
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from equipool.baselines import aggregation_from_name
from equipool.experiments.inner_loop import InnerLoop
from equipool.experiments.molecules.batching import Capacity
from equipool.experiments.molecules.network.layers import (
    CONVOLUTIONS,
    EquilibriumOfMessages,
    GINConvolution,
    SumOfMessages,
    VirtualNode,
)
from equipool.experiments.molecules.network.network import MoleculeNetwork, Readout
from equipool.experiments.molecules.storage import MoleculeArrays, assemble
from generated_molecules import generated, permuted

WIDTH, DEPTH = 6, 3
ROUNDS = {"gin": plain.gin, "gcn": plain.gcn}
READOUTS = ("sum", "mean", "attention", "pna", "set-transformer", "equilibrium")


def equilibrium(steps=4):
    loop = InnerLoop(solver="nesterov:learning_rate=0.05")
    return loop.equilibrium_layer(WIDTH, WIDTH, (8, 6, 3), steps)


def make_network(
    convolution="gin", readout="sum", local="sum", virtual_node=False, dropout=0.0, labels=2
):
    """A network in which no parameter has a special value."""
    torch.manual_seed(0)
    pools = {"sum": SumOfMessages, "equilibrium": lambda: EquilibriumOfMessages(equilibrium())}
    layers = [CONVOLUTIONS[convolution](WIDTH, pools[local]()) for _ in range(DEPTH)]
    aggregation = (
        equilibrium() if readout == "equilibrium" else aggregation_from_name(readout, WIDTH, WIDTH)
    )
    network = MoleculeNetwork(
        WIDTH,
        labels,
        layers,
        Readout(aggregation),
        virtual_node=VirtualNode(WIDTH, DEPTH - 1, dropout) if virtual_node else None,
        dropout=dropout,
    ).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return network


def batch_of(molecules, positions=None, spare=(0, 0, 0)):
    """The molecules, or some of them, with so many molecules, atoms and bonds of padding."""
    positions = torch.arange(len(molecules)) if positions is None else torch.tensor(positions)
    atoms, bonds = molecules.num_atoms[positions].sum(), molecules.num_bonds[positions].sum()
    capacity = Capacity(
        len(positions) + spare[0], max(int(atoms) + spare[1], 1), max(int(bonds) + spare[2], 1)
    )
    padded = torch.nn.functional.pad(positions, (0, spare[0]), value=-1)
    return assemble(MoleculeArrays.of(molecules), padded, capacity)


each_network = pytest.mark.parametrize(
    ("convolution", "local", "virtual_node"),
    list(itertools.product(("gin", "gcn"), ("sum", "equilibrium"), (False, True))),
)
each_readout = pytest.mark.parametrize("readout", READOUTS)


@each_network
def test_it_is_the_reference(convolution, local, virtual_node):
    network = make_network(convolution, local=local, virtual_node=virtual_node)
    molecules = generated(9)
    pools = [
        plain.by_layer(layer.aggregation) if local == "equilibrium" else plain.summed
        for layer in network.convolutions
    ]
    expected, owner = plain.reference_atoms(network, molecules, ROUNDS[convolution], pools)
    batch = batch_of(molecules, spare=(2, 5, 7))
    found = network.embed(batch)[: len(owner)]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
    weights = torch.randn_like(expected)
    parameters = [*network.convolutions.parameters(), network.atom_encoder.weight]
    theirs = torch.autograd.grad((expected * weights).sum(), parameters)
    own = torch.autograd.grad((found * weights).sum(), parameters)
    for mine, its in zip(own, theirs, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-7)


def test_the_convolution_of_gin_is_that_of_pytorch_geometric():
    nn = pytest.importorskip("torch_geometric.nn")
    molecules = generated(9)
    batch = batch_of(molecules)
    convolution = make_network("gin").convolutions[0]
    features = make_network("gin").bond_features(batch.bonds)

    class Behind(torch.nn.Module):
        def forward(self, x):
            z = plain.batch_norm(convolution.norm, convolution.first(x))
            return convolution.second(torch.relu(z))

    theirs = nn.GINEConv(Behind(), eps=float(convolution.epsilon.detach()))
    x = torch.randn(len(molecules.atoms), WIDTH, dtype=torch.float64)
    ends = torch.stack([batch.source, batch.target])
    found = convolution(x, batch, features)
    torch.testing.assert_close(found, theirs(x, ends, convolution.bond_encoder(features)))


@each_readout
@pytest.mark.parametrize("local", ["sum", "equilibrium"])
def test_padding_changes_nothing(readout, local):
    """Neither predictions nor gradients nor running statistics, in training."""
    molecules = generated(9)
    found = []
    for spare in ((0, 0, 0), (3, 40, 25)):
        network = make_network(readout=readout, local=local, virtual_node=True)
        prediction = network(batch_of(molecules, spare=spare))
        labels = prediction.labels[:9]
        aux = prediction.readout_aux_loss + prediction.local_aux_loss
        (labels.square().sum() + aux).backward()
        gradients = [p.grad for p in network.parameters() if p.grad is not None]
        found.append([labels, aux, *gradients, *network.buffers()])
    assert len(found[0]) > 20
    for without, with_padding in zip(*found, strict=True):
        torch.testing.assert_close(without, with_padding, rtol=1e-7, atol=1e-9)


def test_what_padding_molecules_are_given_passes_no_gradient():
    network = make_network(virtual_node=True)
    network(batch_of(generated(9), spare=(3, 9, 9))).labels[9:].sum().backward()
    moved = {name for name, p in network.named_parameters() if p.grad is not None and p.grad.any()}
    assert moved == {"head.bias"}


@each_readout
@pytest.mark.parametrize("convolution", ["gin", "gcn"])
def test_alone_as_in_any_batch(readout, convolution):
    network = make_network(convolution, readout, virtual_node=True).eval()
    molecules = generated(12)
    together = network(batch_of(molecules, spare=(1, 3, 2))).labels
    reversed_order = network(batch_of(molecules, list(range(11, -1, -1)))).labels
    torch.testing.assert_close(reversed_order.flip(0), together[:12])
    for i in range(12):
        alone = network(batch_of(molecules, [i], spare=(0, 2, 1))).labels
        torch.testing.assert_close(alone, together[i : i + 1])


@each_readout
def test_the_order_of_atoms_and_bonds_does_not_matter(readout):
    network = make_network(readout=readout, local="equilibrium", virtual_node=True).eval()
    molecules = generated(12)
    one, other = (network(batch_of(m)).labels for m in (molecules, permuted(molecules)))
    assert not torch.equal(permuted(molecules).atoms, molecules.atoms)
    torch.testing.assert_close(one, other)


@each_readout
def test_odd_molecules_have_finite_predictions_and_gradients(readout):
    network = make_network(readout=readout, local="equilibrium", virtual_node=True)
    prediction = network(batch_of(generated(4)))
    assert prediction.labels.isfinite().all()
    prediction.labels.square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


@each_network
@each_readout
def test_every_parameter_has_a_gradient(convolution, local, virtual_node, readout):
    """Without one, several processes would wait for each other in vain."""
    network = make_network(convolution, readout, local, virtual_node)
    prediction = network(batch_of(generated(9)))
    aux = prediction.readout_aux_loss + prediction.local_aux_loss
    (prediction.labels.square().sum() + aux).backward()
    assert [name for name, p in network.named_parameters() if p.grad is None] == []


def test_no_bonds_at_all():
    molecules = generated(3).select(torch.tensor([0, 2]))
    assert len(molecules.bonds) == 0
    for local in ("sum", "equilibrium"):
        labels = make_network(local=local)(batch_of(molecules)).labels
        assert labels.isfinite().all()
        assert not torch.equal(labels[0], labels[1])


def test_bonds_and_their_features_are_read():
    molecules = generated(9, odd=False)
    network = make_network().eval()
    before = network(batch_of(molecules)).labels
    others = type(molecules)(**{**vars(molecules), "bonds": (molecules.bonds + 1) % 2})
    assert not torch.allclose(network(batch_of(others)).labels, before)


def test_auxiliary_losses_are_told_apart():
    molecules = generated(9)
    seen = {}
    for readout, local in itertools.product(("sum", "equilibrium"), repeat=2):
        found = make_network(readout=readout, local=local)(batch_of(molecules))
        aux = (found.readout_aux_loss, found.local_aux_loss)
        seen[readout, local] = [value.item() > 0 for value in aux]
    assert list(seen.values()) == [
        [False, False], [False, True], [True, False], [True, True],
    ]  # fmt: skip


def test_atoms_are_left_out_of_the_readout_in_training_alone():
    network = make_network()
    network.atom_dropout = 0.5
    batch = batch_of(generated(9))
    torch.manual_seed(0)
    seen = network._visible(batch)
    assert 0 < int(seen.sum()) < int(batch.atom_mask.sum())
    assert not (seen & ~batch.atom_mask).any()
    first, second = network(batch).labels, network(batch).labels
    assert not torch.equal(first, second)
    network.eval()
    assert torch.equal(network(batch).labels, network(batch).labels)


def test_dropout_is_that_of_the_reference():
    """Behind every convolution, the last one too, and behind the virtual node's updates."""
    network = make_network(virtual_node=True, dropout=0.5)
    calls = []
    for module in network.modules():
        if isinstance(module, torch.nn.Dropout) and module.p:
            module.register_forward_hook(lambda *_, module=module: calls.append(module))
    network(batch_of(generated(9)))
    assert calls.count(network.dropout) == DEPTH
    assert calls.count(network.virtual_node.dropout) == DEPTH - 1


@pytest.mark.parametrize("readout", ["set-transformer", "janossy"])
def test_sets_padded_beforehand_give_the_same(readout, monkeypatch):
    """As on a GPU, where looking for the longest molecule would wait for the device."""
    network = make_network(readout=readout)
    batch = batch_of(generated(12), spare=(2, 4, 4))
    seen = batch.atom_mask & (torch.arange(len(batch.atom_mask)) % 3 > 0)
    monkeypatch.setattr(MoleculeNetwork, "_visible", lambda self, batch: seen)
    expected = network(batch).labels
    expected.sum().backward()
    gradients = [p.grad for p in network.parameters()]
    other = copy.deepcopy(network)
    other.zero_grad()
    monkeypatch.setattr(
        "equipool.experiments.molecules.network.network.values_are_at_hand", lambda x: False
    )
    found = other(batch).labels
    found.sum().backward()
    torch.testing.assert_close(found[:12], expected[:12])
    for mine, its in zip((p.grad for p in other.parameters()), gradients, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-6, atol=1e-9)


class Operations(TorchDispatchMode):
    """Names of the operations in the block."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **kwargs or {})


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Padding is carried along, and no value is read."""
    room = "equipool.experiments.molecules.network"
    for module in ("equipool.layouts", "equipool.sets", f"{room}.network", f"{room}.batch"):
        monkeypatch.setattr(f"{module}.values_are_at_hand", lambda x: False)


@each_network
def test_a_batch_is_prepared_once_for_all_layers(convolution, local, virtual_node, as_on_a_gpu):
    """Bonds are not sorted again, and degrees are counted in the first layer."""
    network = make_network(convolution, "equilibrium", local, virtual_node)
    batch = batch_of(generated(9), spare=(2, 5, 7))
    counts = []
    for _ in range(2):
        with Operations() as operations:
            network(batch).labels[:9].sum().backward()
        assert "sort" not in operations.names
        counts.append(operations.names.count("rsqrt"))
    assert counts[0] - counts[1] == (convolution == "gcn")


@pytest.mark.parametrize("convolution", ["gin", "gcn"])
def test_padding_that_is_carried_along_changes_nothing(convolution, request):
    molecules = generated(9)
    found = []
    for on_gpu in (False, True):
        if on_gpu:
            request.getfixturevalue("as_on_a_gpu")
        network = make_network(convolution, "equilibrium", "equilibrium", virtual_node=True)
        labels = network(batch_of(molecules, spare=(3, 40, 25))).labels[:9]
        labels.square().sum().backward()
        found.append([labels, *(p.grad for p in network.parameters())])
    for cut, carried in zip(*found, strict=True):
        torch.testing.assert_close(cut, carried, rtol=1e-7, atol=1e-9)


def test_sizes_are_those_of_the_reference():
    """OGB's GIN of five layers and width 300 has so many parameters, its embeddings included."""
    network = MoleculeNetwork(
        300, 1, [GINConvolution(300, SumOfMessages()) for _ in range(5)],
        Readout(aggregation_from_name("sum", 300, 300)),
    )  # fmt: skip
    gin = 5 * (13 * 300 + 1 + 300 * 600 + 600 + 2 * 600 + 600 * 300 + 300 + 2 * 300)
    assert sum(p.numel() for p in network.parameters()) == gin + 174 * 300 + 301
