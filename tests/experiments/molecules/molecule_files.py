"""Molecules, and files with them in the formats that people have them in."""

import gzip
import importlib

import numpy as np

from generated_molecules import one

ODD = (
    "C",  # one atom
    "[Na+].[Cl-]",  # a salt: no bonds
    "[H][H]",
    "[2H]O[2H]",
    "C*",  # an unknown atom
    "[CH3]",  # a radical
    "[Fe+6]",
    "C[C@H](F)Cl",
    r"F/C=C\F",
    "c1ccccc1-c1cc[nH]c1",
    "CC(=O)[O-].[NH3+]CC",
    "N->[Fe]",
    "C#CC=C=C",
    "[Cl][Pt@SP1]([Cl])([NH3])[NH3]",
    "O=C1c2ccccc2C(=O)N1[C@H]1CCC(=O)NC1=O",
)
BROKEN = {
    "C1CC": "unclosed ring",
    "C(C": "extra open parentheses",
    "Xx": "syntax error",
    "": "empty",
    "CC(C)(C)(C)C": "Explicit valence for atom # 1 C, 5",
    "c1cccc1": "Can't kekulize mol",
    "CC O": "white space",
}


def ogb(smiles):
    """The graph that `ogb` makes of a molecule: atoms, bonds and ends."""
    graph = importlib.import_module("ogb.utils.mol").smiles2graph(smiles)
    return graph["node_feat"], graph["edge_feat"], graph["edge_index"]


def check_against_ogb(molecules, smiles):
    """Every molecule has the atoms that `ogb` has, and the same bonds, sorted by target."""
    assert len(molecules) == len(smiles)
    for position, text in enumerate(smiles):
        atoms, bonds, ends = ogb(text)
        order = np.argsort(ends[1], kind="stable")
        expected = atoms, bonds[order], ends[:, order]
        for found, theirs in zip(one(molecules, position), expected, strict=True):
            np.testing.assert_array_equal(found.numpy(), theirs, text)


def write_packed(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))


def write_ogb_folder(folder, smiles, labels, split):
    """A folder as `ogb` leaves it: a bond is there once, and rows have no header."""
    graphs = [ogb(text) for text in smiles]
    write_packed(folder / "raw/num-node-list.csv.gz", [len(atoms) for atoms, _, _ in graphs])
    write_packed(folder / "raw/num-edge-list.csv.gz", [len(bonds) // 2 for _, bonds, _ in graphs])
    write_packed(folder / "raw/node-feat.csv.gz", _rows(atoms for atoms, _, _ in graphs))
    write_packed(folder / "raw/edge-feat.csv.gz", _rows(bonds[::2] for _, bonds, _ in graphs))
    write_packed(folder / "raw/edge.csv.gz", _rows(ends.T[::2] for _, _, ends in graphs))
    cells = [["" if np.isnan(label) else str(label) for label in row] for row in labels]
    write_packed(folder / "raw/graph-label.csv.gz", _rows([cells]))
    for part, positions in split.items():
        write_packed(folder / f"split/scaffold/{part}.csv.gz", positions)
    names = [f"assay {label}" for label in range(len(labels[0]))]
    rows = [[*row, text, f"CID{at}"] for at, (row, text) in enumerate(zip(cells, smiles))]  # noqa: B905
    write_packed(folder / "mapping/mol.csv.gz", _rows([[[*names, "smiles", "mol_id"], *rows]]))
    return folder


def _rows(arrays):
    return [",".join(map(str, row)) for array in arrays for row in array]
