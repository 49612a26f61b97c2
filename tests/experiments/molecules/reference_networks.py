"""OGB's reference networks once more, as plainly as they can be written: loops over atoms and
bonds, torch's own batch normalisation. Weights come from the network that is compared."""

import torch
from torch import nn


def embedded(encoder, categories):
    """The sum of one embedding per feature, row by row."""
    tables = encoder.weight.split(encoder.sizes)
    rows = [sum(t[c] for t, c in zip(tables, row, strict=True)) for row in categories.tolist()]
    return torch.stack(rows) if rows else encoder.weight.new_zeros(0, encoder.weight.shape[1])


def through(layers, x):
    """A sequence of layers in training mode, whose running statistics stay as they are."""
    for layer in layers:
        if isinstance(layer, nn.BatchNorm1d):
            weights = {"weight": layer.weight, "bias": layer.bias, "eps": layer.eps}
            x = nn.functional.batch_norm(x, None, None, training=True, **weights)
        else:
            x = layer(x)
    return x


def pooled(aggregation, messages, ends, x):
    """The messages to each atom, pooled by themselves."""
    rows = []
    for atom in range(len(x)):
        own = [message for (_, b), message in zip(ends, messages, strict=True) if b == atom]
        rows.append(aggregation(own) if own else torch.zeros(x.shape[1]))
    return torch.stack(rows)


def gin(layer, x, ends, bonds, pool):
    edges = embedded(layer.bond_encoder, bonds)
    messages = [torch.relu(x[a] + e) for (a, _), e in zip(ends, edges, strict=True)]
    return through(layer.mlp, (1 + layer.epsilon) * x + pooled(pool, messages, ends, x))


def gcn(layer, x, ends, bonds, pool):
    x = layer.linear(x)
    edges = embedded(layer.bond_encoder, bonds)
    degrees = [1.0 + sum(a == atom for a, _ in ends) for atom in range(len(x))]
    degree = torch.tensor(degrees, dtype=x.dtype)
    messages = [
        torch.relu(x[a] + e) / (degree[a] * degree[b]).sqrt()
        for (a, b), e in zip(ends, edges, strict=True)
    ]
    root = torch.relu(x + layer.root) / degree.unsqueeze(-1)
    return pooled(pool, messages, ends, x) + root


def reference_atoms(network, molecules, convolve, pools):
    """The atoms after the last convolution, without dropout, in training mode."""
    first = molecules.atom_start[:-1].repeat_interleave(molecules.bond_start.diff())
    ends = (molecules.ends + first).T.tolist()
    x = embedded(network.atom_encoder, molecules.atoms)
    for number, layer in enumerate(network.convolutions):
        y = convolve(layer, x, ends, molecules.bonds, pools[number])
        y = through([network.norms[number]], y)
        x = y if number == len(pools) - 1 else torch.relu(y)
    return x
