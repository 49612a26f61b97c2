"""Molecules without labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from equipool.experiments.molecules.data.extras import check_extras
from equipool.experiments.molecules.data.graphs import PARTS, MoleculeSet, offsets_of
from equipool.experiments.molecules.data.making import Batch, make_piece
from equipool.experiments.molecules.data.smiles import LeaveOut, Problem, Unparsable
from equipool.experiments.molecules.data.splits import RandomSplit


def molecules_from_smiles(
    smiles: Sequence[str], unparsable: Unparsable | None = None
) -> tuple[MoleculeSet, tuple[Problem, ...]]:
    """Molecules for prediction, and those that RDKit does not read. `source_rows` says which of
    the SMILES each molecule is; there are no labels, and no molecule is in a part.

    Args:
        smiles: of each molecule.
        unparsable: what becomes of those that RDKit refuses; None to leave them out.
    """
    check_extras()
    stripped = [text.strip() for text in smiles]
    no_labels = np.empty((len(stripped), 0), np.float32)
    batch = Batch(list(range(len(stripped))), stripped, [""] * len(stripped), no_labels)
    piece = make_piece(batch, RandomSplit(), unparsable or LeaveOut())
    molecules = MoleculeSet(
        atoms=torch.from_numpy(piece.atoms),
        bonds=torch.from_numpy(piece.bonds),
        ends=torch.from_numpy(piece.ends),
        atom_start=offsets_of(torch.from_numpy(piece.num_atoms)),
        bond_start=offsets_of(torch.from_numpy(piece.num_bonds)),
        labels=torch.from_numpy(piece.labels),
        label_names=(),
        kind="classification",
        split={part: torch.empty(0, dtype=torch.int64) for part in PARTS},
        source_rows=torch.from_numpy(piece.source_rows),
    )
    return molecules, piece.problems
