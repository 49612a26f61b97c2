"""Molecules of no chemistry: random graphs with random features, odd ones among them."""

from dataclasses import replace

import torch

from equipool.experiments.molecules.molecule_set import (
    ATOM_CATEGORIES,
    BOND_CATEGORIES,
    MoleculeSet,
)
from equipool.experiments.molecules.prepare import Prepared

ODD = [(1, []), (5, [(0, 1), (1, 2), (3, 4)]), (3, [])]  # one atom, two parts, no bonds


def graph(generator):
    """The number of atoms, and bonds in one direction, of a tree with a ring."""
    size = int(torch.randint(2, 9, (), generator=generator))
    tree = [(int(torch.randint(atom, (), generator=generator)), atom) for atom in range(1, size)]
    ring = [(0, size - 1)] if size > 3 and (0, size - 1) not in tree else []
    return size, tree + ring


def categories(number, sizes, generator):
    columns = [torch.randint(size, (number,), generator=generator) for size in sizes]
    return torch.stack(columns, dim=1).to(torch.uint8)


def generated(number=60, *, labels=2, kind="classification", missing=0.2):
    """A data set whose first molecules are the odd ones; a fifth each is validation and test.

    What can be learned is whether a molecule has many atoms of one element.
    """
    generator = torch.Generator().manual_seed(0)
    graphs = [*ODD, *(graph(generator) for _ in range(number - len(ODD)))]
    atoms, shares = [], []
    for size, _ in graphs:
        features = categories(size, ATOM_CATEGORIES, generator)
        chosen = torch.rand(size, generator=generator) < torch.rand((), generator=generator)
        features[chosen, 0] = 5
        atoms.append(features)
        shares.append(chosen.float().mean())
    pairs = [pair for _, bonds in graphs for pair in bonds]
    one_way = categories(len(pairs), BOND_CATEGORIES, generator)
    both = [end for a, b in pairs for end in ((a, b), (b, a))]
    molecules = MoleculeSet.of(
        torch.tensor([size for size, _ in graphs]),
        torch.tensor([2 * len(bonds) for _, bonds in graphs]),
        torch.cat(atoms),
        one_way.repeat_interleave(2, 0),
        torch.tensor(both, dtype=torch.int32),
    )
    share = torch.stack(shares).unsqueeze(-1).expand(-1, labels)
    values = (share > 0.4).float() if kind == "classification" else 50 + 10 * share
    hidden = torch.rand(values.shape, generator=generator) < missing
    return replace(
        molecules, labels=values.masked_fill(hidden, torch.nan),
        label_names=tuple(f"label {i}" for i in range(labels)), kind=kind,
        parts=torch.tensor([0, 0, 0, 1, 2], dtype=torch.uint8).repeat(number)[:number],
    )  # fmt: skip


def one(molecules, position):
    """Atoms, bonds and ends of one molecule."""
    atoms = slice(*molecules.atom_start[position : position + 2])
    bonds = slice(*molecules.bond_start[position : position + 2])
    return molecules.atoms[atoms], molecules.bonds[bonds], molecules.ends[:, bonds]


def permuted(molecules):
    """The same molecules, the atoms and the bonds of each in another order."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for position in range(len(molecules)):
        atoms, bonds, ends = one(molecules, position)
        order = torch.randperm(len(atoms), generator=generator)
        shuffled = torch.randperm(len(bonds), generator=generator)
        ends = torch.argsort(order)[ends.long()][:, shuffled].to(ends.dtype)
        found.append((atoms[order], bonds[shuffled], ends.T))
    atoms, bonds, ends = zip(*found, strict=True)
    sizes = molecules.atom_start.diff(), molecules.bond_start.diff()
    return MoleculeSet.of(*sizes, torch.cat(atoms), torch.cat(bonds), torch.cat(ends))


def serve(molecules, monkeypatch):
    """Every data set is this one."""
    monkeypatch.setattr(
        "equipool.experiments.molecules.task.load_molecules",
        lambda source: Prepared(molecules, (), "generated"),
    )
