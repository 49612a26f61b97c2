"""Bemis-Murcko scaffolds."""

from __future__ import annotations

from typing import Any


def scaffold_of(molecule: Any, smiles: str) -> str:
    """SMILES of an RDKit molecule's rings and what links them, chirality included; "" where there
    are no rings. A molecule whose scaffold RDKit cannot take is one of its own, named by its
    SMILES."""
    from rdkit.Chem.Scaffolds import MurckoScaffold

    try:
        return str(MurckoScaffold.MurckoScaffoldSmiles(mol=molecule, includeChirality=True))
    except (RuntimeError, ValueError):  # a valence that the smaller molecule may not have
        return f"alone: {smiles}"
