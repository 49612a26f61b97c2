"""Some molecules on their way into a cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from equipool.experiments.molecules.data.smiles import Problem

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Piece:
    """$g$ molecules from some rows of a source."""

    num_atoms: Array  # [g] int32
    num_bonds: Array  # [g] int32, each bond counted in both directions
    atoms: Array  # [v, 9] uint8
    bonds: Array  # [e, 3] uint8
    ends: Array  # [2, e] int16
    labels: Array  # [g, L] float32, NaN where missing
    source_rows: Array  # [g] int64
    groups: tuple[str, ...]  # [g] what the split goes by
    problems: tuple[Problem, ...]
    num_rows: int  # of the source, those left out included

    def __post_init__(self) -> None:
        sizes = {len(self.num_atoms), len(self.num_bonds), len(self.labels), len(self.groups)}
        assert sizes == {len(self.source_rows)}
        assert self.num_atoms.sum(dtype=np.int64) == len(self.atoms)
        assert self.num_bonds.sum(dtype=np.int64) == len(self.bonds) == self.ends.shape[1]
