"""OGB's reference networks once more, as plainly as they can be written: one list of atoms, one of
bonds, loops over both, no padding, torch's own batch normalisation. Weights come from the network
that is compared."""

import torch
from torch import nn


def embedded(encoder, categories):
    """The sum of one embedding a feature, row by row."""
    tables = encoder.weight.split(encoder.sizes)
    rows = [sum(t[int(c)] for t, c in zip(tables, row, strict=True)) for row in categories]
    return torch.stack(rows) if rows else encoder.weight.new_zeros(0, encoder.weight.shape[1])


def batch_norm(norm, x):
    """torch's own, with this one's parameters, in training mode."""
    theirs = nn.functional.batch_norm
    return theirs(x, None, None, norm.weight, norm.bias, training=True, eps=norm.eps)


def gin(convolution, x, ends, bonds, pool):
    edges = embedded(convolution.bond_encoder, bonds)
    messages = [torch.relu(x[a] + e) for (a, _), e in zip(ends, edges, strict=True)]
    pooled = pool(messages, ends, x)
    z = (1 + convolution.epsilon) * x + pooled
    hidden = torch.relu(batch_norm(convolution.norm, convolution.first(z)))
    return convolution.second(hidden)


def gcn(convolution, x, ends, bonds, pool):
    x = convolution.linear(x)
    edges = embedded(convolution.bond_encoder, bonds)
    degree = torch.ones(len(x), dtype=x.dtype)
    for a, _ in ends:
        degree[a] += 1
    messages = [
        torch.relu(x[a] + e) / (degree[a] * degree[b]).sqrt()
        for (a, b), e in zip(ends, edges, strict=True)
    ]
    pooled = pool(messages, ends, x)
    return pooled + torch.relu(x + convolution.root) / degree.unsqueeze(-1)


def summed(messages, ends, x):
    rows = [torch.zeros(x.shape[1]) for _ in x]
    for (_, b), message in zip(ends, messages, strict=True):
        rows[b] = rows[b] + message
    return torch.stack(rows)


def by_layer(layer):
    """Pool each atom's messages by themselves."""

    def pool(messages, ends, x):
        rows = []
        for atom in range(len(x)):
            mine = [m for (_, b), m in zip(ends, messages, strict=True) if b == atom]
            rows.append(layer(torch.stack(mine))[0] if mine else torch.zeros(x.shape[1]))
        return torch.stack(rows)

    return pool


def flat(molecules):
    """Atoms, ends, bonds and the molecule of each atom, for all molecules at once."""
    ends, owner = [], []
    for i in range(len(molecules)):
        first = int(molecules.atom_start[i])
        begin, end = int(molecules.bond_start[i]), int(molecules.bond_start[i + 1])
        pairs = molecules.ends[:, begin:end].T.tolist()
        ends += [(first + a, first + b) for a, b in pairs]
        owner += [i] * int(molecules.num_atoms[i])
    return molecules.atoms.tolist(), ends, molecules.bonds.tolist(), owner


def reference_atoms(network, molecules, rounds, pools):
    """The atoms after the last convolution, without dropout, in training mode."""
    atoms, ends, bonds, owner = flat(molecules)
    x = embedded(network.atom_encoder, atoms)
    virtual = [network.virtual_node.start[0]] * len(molecules) if network.virtual_node else None
    for layer, convolution in enumerate(network.convolutions):
        if virtual is not None:
            x = torch.stack([row + virtual[i] for row, i in zip(x, owner, strict=True)])
        y = rounds(convolution, x, ends, bonds, pools[layer])
        y = batch_norm(network.norms[layer], y)
        last = layer == len(network.convolutions) - 1
        if virtual is not None and not last:
            received = [v + sum(r for r, o in zip(x, owner, strict=True) if o == i)
                        for i, v in enumerate(virtual)]  # fmt: skip
            update = network.virtual_node.updates[layer]
            z = torch.relu(batch_norm(update.first_norm, update.first(torch.stack(received))))
            virtual = list(torch.relu(batch_norm(update.second_norm, update.second(z))))
        x = y if last else torch.relu(y)
    return x, owner
