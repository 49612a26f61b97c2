"""Molecules from SMILES."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipool.experiments.molecules.data.features import MAX_ATOMS, Bytes, Ends, graph_of
from equipool.experiments.molecules.data.graphs import ATOM_CATEGORIES, BOND_CATEGORIES
from equipool.experiments.molecules.data.pieces import Array, Piece
from equipool.experiments.molecules.data.smiles import Problem, Unparsable, read_smiles
from equipool.experiments.molecules.data.splits import Split

Graph = tuple[Bytes, Bytes, Ends]


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows of a table."""

    rows: list[int]
    smiles: list[str]
    cells: list[str]  # of the split's column, "" without one
    labels: Array  # [n, L] float32


def make_piece(batch: Batch, split: Split, unparsable: Unparsable) -> Piece:
    """The molecules of a batch, and the problems with them."""
    from rdkit import rdBase

    problems, kept, groups, graphs = [], [], [], []
    with rdBase.BlockLogs():
        for at, smiles in enumerate(batch.smiles):
            molecule, reason = read_smiles(smiles)
            if molecule is None:
                molecule = unparsable.rescue(smiles)
            graph, oddity = _graph(molecule)
            if reason or oddity:
                found = Problem(batch.rows[at], smiles, reason or oddity, graph is not None)
                problems.append(found)
            if graph is not None:
                kept.append(at)
                graphs.append(graph)
                groups.append(split.group(molecule, smiles, batch.cells[at]))
    atoms, bonds, ends = _side_by_side(graphs)
    return Piece(
        num_atoms=np.array([len(graph[0]) for graph in graphs], np.int32),
        num_bonds=np.array([len(graph[1]) for graph in graphs], np.int32),
        atoms=atoms,
        bonds=bonds,
        ends=ends,
        labels=batch.labels[kept],
        source_rows=np.array(batch.rows, np.int64)[kept],
        groups=tuple(groups),
        problems=tuple(problems),
        num_rows=len(batch.rows),
    )


def _graph(molecule: Any | None) -> tuple[Graph | None, str]:
    """The arrays of an RDKit molecule and "", or None and the reason."""
    if molecule is None:
        return None, ""
    if molecule.GetNumAtoms() > MAX_ATOMS:
        return None, f"{molecule.GetNumAtoms():,} atoms, more than {MAX_ATOMS:,}"
    try:
        return graph_of(molecule), ""
    except ValueError as error:  # a stereo bond that OGB has no category for
        return None, f"OGB has no features for it: {error}"


def _side_by_side(graphs: Sequence[Graph]) -> Graph:
    nothing = (
        np.empty((0, len(ATOM_CATEGORIES)), np.uint8),
        np.empty((0, len(BOND_CATEGORIES)), np.uint8),
        np.empty((2, 0), np.int16),
    )
    atoms, bonds, ends = zip(nothing, *graphs, strict=True)
    return np.concatenate(atoms), np.concatenate(bonds), np.concatenate(ends, axis=1)
