"""Files with molecules, in the formats that people have them in."""

import csv
import gzip
import importlib
from pathlib import Path

import numpy as np
import pytest

from python_blocks import ROOT

SHARED = ROOT.parent / "shared" / "data"
needs_shared_data = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not here")

ODD = (
    "C",  # one atom
    "[Na+].[Cl-]",  # a salt: no bonds
    "[H][H]",
    "[2H]O[2H]",
    "[He]",
    "[Og]",
    "C*",  # an unknown atom
    "[CH3]",  # a radical
    "[Fe+6]",
    "C[C@H](F)Cl",
    "C[C@@H](F)Cl",
    r"F/C=C\F",
    "F/C=C/F",
    "c1ccccc1-c1cc[nH]c1",
    "CC(=O)[O-].[NH3+]CC",
    "N->[Fe]",
    "F[P-](F)(F)(F)(F)F",
    "C#CC=C=C",
    "[Cl][Pt@SP1]([Cl])([NH3])[NH3]",
    "O=C1c2ccccc2C(=O)N1[C@H]1CCC(=O)NC1=O",
    "C1CCCCCCCCCCCCCC1",
)
BROKEN = {
    "C1CC": "unclosed ring",
    "C(C": "extra open parentheses",
    "Xx": "syntax error",
    "": "empty",
    "CC(C)(C)(C)C": "Explicit valence for atom # 1 C, 5",
    "c1cccc1": "Can't kekulize mol",
}


def ogb(module):
    """A module of `ogb`."""
    return importlib.import_module(f"ogb.{module}")


def write_csv(path, columns, rows):
    """A table; packed where the name says so."""
    open_it = gzip.open if path.suffix == ".gz" else open
    with open_it(path, "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)
    return path


def write_packed(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.writelines(f"{line}\n" for line in lines)


def write_ogb_folder(folder, smiles, labels, split, names=None):
    """A folder as `ogb` leaves it: a bond is there once, and rows have no header."""
    graphs = [ogb("utils.mol").smiles2graph(text) for text in smiles]
    once = [graph["edge_index"].T[::2] for graph in graphs]
    write_packed(folder / "raw/num-node-list.csv.gz", [g["num_nodes"] for g in graphs])
    write_packed(folder / "raw/num-edge-list.csv.gz", [len(edges) for edges in once])
    write_packed(folder / "raw/node-feat.csv.gz", _rows(g["node_feat"] for g in graphs))
    write_packed(folder / "raw/edge-feat.csv.gz", _rows(g["edge_feat"][::2] for g in graphs))
    write_packed(folder / "raw/edge.csv.gz", _rows(once))
    cells = [["" if np.isnan(label) else str(label) for label in row] for row in labels]
    write_packed(folder / "raw/graph-label.csv.gz", [",".join(row) for row in cells])
    for part, positions in split.items():
        write_packed(folder / f"split/scaffold/{part}.csv.gz", positions)
    if names is not None:
        (folder / "mapping").mkdir()
        columns = [*names, "smiles", "mol_id"]
        rows = [
            [*row, text, f"CID{at}"]
            for at, (row, text) in enumerate(zip(cells, smiles, strict=True))
        ]
        write_csv(folder / "mapping/mol.csv.gz", columns, rows)
    return folder


def _rows(arrays):
    return [",".join(map(str, row)) for array in arrays for row in array]


def files_in(folder):
    """Names of all files below a folder, those that are hidden as well."""
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*"))


SMILES = [*ODD] * 30  # more than a batch
TOX21 = ["NR-AR", "NR-AR-LBD", "NR-AhR", "NR-Aromatase", "NR-ER", "NR-ER-LBD", "NR-PPAR-gamma",
         "SR-ARE", "SR-ATAD5", "SR-HSE", "SR-MMP", "SR-p53"]  # fmt: skip


def write_tox21(folder, smiles):
    rows = [[text, *(["1", "0", ""] * 4)] for text in smiles]
    return write_csv(folder / "tox21.csv.gz", ["smiles", *TOX21], rows)


def refuse_to_prepare(monkeypatch):
    def refuse(source, contents, path, *, private):
        raise AssertionError(f"{path} is prepared again")

    monkeypatch.setattr("equipool.experiments.molecules.data.load.prepare", refuse)
