"""Molecules of no chemistry: random graphs with random features, odd ones among them."""

from types import SimpleNamespace

import torch

from equipool.experiments.molecules.data import MoleculeSet
from equipool.experiments.molecules.data.molecule_set import ATOM_CATEGORIES, BOND_CATEGORIES

ODD = {"one atom": 0, "two parts": 1, "no bonds": 2, "no atoms": 3}


def bonds_of(kind, generator):
    """Atoms, and bonds in one direction, of a molecule."""
    if kind == ODD["no atoms"]:
        return 0, []
    if kind == ODD["one atom"]:
        return 1, []
    if kind == ODD["no bonds"]:
        return 3, []
    if kind == ODD["two parts"]:
        return 5, [(0, 1), (1, 2), (3, 4)]
    size = int(torch.randint(2, 9, (), generator=generator))
    tree = [(int(torch.randint(atom, (), generator=generator)), atom) for atom in range(1, size)]
    ring = [(0, size - 1)] if size > 3 and (0, size - 1) not in tree else []
    return size, tree + ring


def categories(number, sizes, generator):
    columns = [torch.randint(size, (number,), generator=generator) for size in sizes]
    return torch.stack(columns, dim=1).to(torch.uint8)


def generated(
    number=60, *, labels=2, kind="classification", missing=0.2, seed=0, odd=True, learnable=True
):
    """A data set whose first molecules are the odd ones; a fifth each is validation and test.

    What can be learned is whether a molecule has many atoms of one element.
    """
    generator = torch.Generator().manual_seed(seed)
    atoms, bonds, ends, sizes, counts, targets = [], [], [], [], [], []
    for molecule in range(number):
        size, pairs = bonds_of(molecule if odd else -1, generator)
        features = categories(size, ATOM_CATEGORIES, generator)
        common = torch.rand((), generator=generator) if learnable else 0.0
        chosen = torch.rand(size, generator=generator) < common
        features[chosen, 0] = 5
        atoms.append(features)
        one_way = categories(len(pairs), BOND_CATEGORIES, generator)
        bonds.append(one_way.repeat_interleave(2, 0))
        both = [end for a, b in pairs for end in ((a, b), (b, a))]
        ends.append(torch.tensor(both, dtype=torch.int16).reshape(-1, 2).T)
        sizes.append(size)
        counts.append(len(both))
        share = chosen.float().mean() if size else torch.zeros(())
        targets.append(share)
    shares = torch.stack(targets).unsqueeze(-1).expand(-1, labels)
    values = (shares > 0.4).float() if kind == "classification" else 50 + 10 * shares
    hidden = torch.rand(values.shape, generator=generator) < missing
    order = torch.arange(number)
    return MoleculeSet(
        atoms=torch.cat(atoms),
        bonds=torch.cat(bonds),
        ends=torch.cat(ends, dim=1),
        atom_start=torch.tensor([0, *sizes]).cumsum(0),
        bond_start=torch.tensor([0, *counts]).cumsum(0),
        labels=values.masked_fill(hidden, torch.nan),
        label_names=tuple(f"label {i}" for i in range(labels)),
        kind=kind,
        split={
            "train": order[order % 5 < 3],
            "valid": order[order % 5 == 3],
            "test": order[order % 5 == 4],
        },
        source_rows=order,
    )


def permuted(molecules, seed=0):
    """The same molecules, the atoms and the bonds of each in another order."""
    generator = torch.Generator().manual_seed(seed)
    atoms, bonds, ends = [], [], []
    for i in range(len(molecules)):
        one = molecules.one(i)
        order = torch.randperm(len(one.atoms), generator=generator)
        place = torch.argsort(order)
        shuffled = torch.randperm(len(one.bonds), generator=generator)
        atoms.append(one.atoms[order])
        bonds.append(one.bonds[shuffled])
        ends.append(place[one.ends.long()][:, shuffled].to(one.ends.dtype))
    return MoleculeSet(
        **{
            **vars(molecules),
            "atoms": torch.cat(atoms),
            "bonds": torch.cat(bonds),
            "ends": torch.cat(ends, dim=1),
        }
    )


def serve(molecules, monkeypatch):
    """Every data set is this one. Ask from a data folder of your own: sets are kept by it."""
    cache = SimpleNamespace(molecules=lambda: molecules, about={"source": {"generated": True}})
    monkeypatch.setattr(
        "equipool.experiments.molecules.dataset.molecule_cache", lambda source: cache
    )
