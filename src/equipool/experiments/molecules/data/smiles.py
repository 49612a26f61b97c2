"""SMILES that RDKit reads, and those that it does not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

NOT_SMILES = "not SMILES that RDKit can read"
SEVERAL_WORDS = "expected no white space, behind which RDKit would not read"


@dataclass(frozen=True)
class Problem:
    """A molecule that RDKit does not read as it stands."""

    row: int  # of the source, the first row of data being 0
    smiles: str
    reason: str
    kept: bool  # True where it is in the set all the same


class Unparsable(ABC):
    """What becomes of a molecule that RDKit refuses. It is listed in any case."""

    @abstractmethod
    def rescue(self, smiles: str) -> Any | None:
        """An RDKit molecule in its place, or None to leave it out."""


@dataclass(frozen=True)
class LeaveOut(Unparsable):
    """It is left out."""

    def rescue(self, smiles: str) -> Any | None:
        return None


@dataclass(frozen=True)
class KeepUnsanitised(Unparsable):
    """It is kept where its SMILES can be read at all, with whatever valences it has."""

    def rescue(self, smiles: str) -> Any | None:
        from rdkit import Chem

        if len(smiles.split()) > 1:
            return None
        molecule: Any = Chem.MolFromSmiles(smiles, sanitize=False)
        if molecule is None or not molecule.GetNumAtoms():
            return None
        molecule.UpdatePropertyCache(strict=False)
        everything_but_valences = Chem.SANITIZE_ALL ^ Chem.SANITIZE_PROPERTIES
        Chem.SanitizeMol(molecule, everything_but_valences, catchErrors=True)
        return molecule


def read_smiles(smiles: str) -> tuple[Any | None, str]:
    """The RDKit molecule and "", or None and the reason."""
    from rdkit import Chem

    if not smiles:
        return None, "empty"
    if len(smiles.split()) > 1:
        return None, SEVERAL_WORDS
    molecule: Any = Chem.MolFromSmiles(smiles)
    if molecule is None:
        return None, _reason(smiles)
    return (molecule, "") if molecule.GetNumAtoms() else (None, "no atoms")


def _reason(smiles: str) -> str:
    from rdkit import Chem

    raw: Any = Chem.MolFromSmiles(smiles, sanitize=False)
    if raw is None:
        return _syntax_error(smiles)
    problems = [problem.Message() for problem in Chem.DetectChemistryProblems(raw)]
    return "; ".join(problems) or NOT_SMILES


def _syntax_error(smiles: str) -> str:
    """RDKit's first words about it."""
    from rdkit import Chem, rdBase

    capture = getattr(rdBase, "CaptureErrorLog", None)  # since 2026.3
    if capture is None:
        return NOT_SMILES
    with capture() as log:
        Chem.MolFromSmiles(smiles)
    first = str(log.messages).split("\n", 1)[0]
    _, _, said = first.partition("SMILES Parse Error: ")
    return said or NOT_SMILES
