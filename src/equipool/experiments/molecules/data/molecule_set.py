"""A set of molecules as flat tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Sizes of OGB's categorical features. Atoms: element, chirality, degree, charge, hydrogens, radical
# electrons, hybridisation, aromatic, in a ring. Bonds: type, stereo, conjugated.
ATOM_CATEGORIES = (119, 5, 12, 12, 10, 6, 6, 2, 2)
BOND_CATEGORIES = (5, 6, 2)
KINDS = ("classification", "regression")
CHECK_SIZE = 2**16  # molecules whose bonds are checked at a time, to bound memory
PARTS = ("train", "valid", "test")


@dataclass(frozen=True, eq=False)
class MoleculeSet:
    """$G$ molecules with their atoms, and their bonds, concatenated.

    Atom `i` of molecule `g` is row `atom_start[g] + i` of `atoms`. The bonds of molecule `g` are
    the columns `bond_start[g]:bond_start[g + 1]` of `ends`, which number the molecule's atoms from
    0. Every bond is listed in both directions, one after the other.
    """

    atoms: Tensor  # [V, 9] uint8, categories of OGB's atom features
    bonds: Tensor  # [E, 3] uint8, categories of OGB's bond features
    ends: Tensor  # [2, E] int16 or int32, source and target of each bond
    atom_start: Tensor  # [G + 1] int64
    bond_start: Tensor  # [G + 1] int64
    labels: Tensor  # [G, L] float32, NaN where missing
    label_names: tuple[str, ...]
    kind: str  # "classification" or "regression"
    split: dict[str, Tensor]  # "train", "valid", "test": positions of molecules, int64
    source_rows: Tensor  # [G] int64, row of the source; the first data row is 0

    def __post_init__(self) -> None:
        self._check_shapes()
        self._check_values()

    def __len__(self) -> int:
        return self.atom_start.shape[0] - 1

    @property
    def num_labels(self) -> int:
        return len(self.label_names)

    @property
    def num_atoms(self) -> Tensor:
        """The number of atoms of each molecule, `[G]`."""
        return self.atom_start.diff()

    @property
    def num_bonds(self) -> Tensor:
        """The number of columns of `ends` of each molecule, `[G]`: twice its bonds."""
        return self.bond_start.diff()

    def select(self, positions: Tensor) -> MoleculeSet:
        """The molecules at `positions [G']` (int64), in this order, with their split parts."""
        number = len(self)
        if bool(((positions < 0) | (positions >= number)).any()):
            raise IndexError(f"positions: expected 0 to {number - 1}, found {positions.tolist()}")
        atom_rows, atom_start = ranges(self.atom_start, positions)
        bond_rows, bond_start = ranges(self.bond_start, positions)
        split = {
            part: torch.isin(positions, those).nonzero().squeeze(1)
            for part, those in self.split.items()
        }
        return MoleculeSet(
            self.atoms[atom_rows], self.bonds[bond_rows], self.ends[:, bond_rows],
            atom_start, bond_start, self.labels[positions], self.label_names, self.kind,
            split, self.source_rows[positions],
        )  # fmt: skip

    def one(self, position: int) -> MoleculeSet:
        """The molecule at `position`."""
        return self.select(torch.tensor([position]))

    def _check_shapes(self) -> None:
        num_ends, number = self.bonds.shape[0], self.atom_start.shape[0] - 1
        _check("atoms", self.atoms, (self.atoms.shape[0], len(ATOM_CATEGORIES)), torch.uint8)
        _check("bonds", self.bonds, (num_ends, len(BOND_CATEGORIES)), torch.uint8)
        _check("ends", self.ends, (2, num_ends), torch.int16, torch.int32)
        _check("atom_start", self.atom_start, (max(number, 0) + 1,), torch.int64)
        _check("bond_start", self.bond_start, (number + 1,), torch.int64)
        _check("labels", self.labels, (number, len(self.label_names)), torch.float32)
        _check("source_rows", self.source_rows, (number,), torch.int64)
        for part, positions in self.split.items():
            _check(f"split[{part!r}]", positions, (positions.numel(),), torch.int64)
        if tuple(self.split) != PARTS:
            raise ValueError(f"split: expected the parts {PARTS}, found {tuple(self.split)}")
        if self.kind not in KINDS:
            raise ValueError(f"kind: expected one of {KINDS}, found {self.kind!r}")

    def _check_values(self) -> None:
        for name, features, categories, start in (
            ("atom", self.atoms, ATOM_CATEGORIES, self.atom_start),
            ("bond", self.bonds, BOND_CATEGORIES, self.bond_start),
        ):
            for column, number in enumerate(categories):
                top = features[:, column].max() if len(features) else 0
                if top >= number:
                    found = f"column {column} has {number} categories, found {top}"
                    raise ValueError(f"{name}s: {found}")
            if start[0] != 0 or start[-1] != len(features) or bool((start.diff() < 0).any()):
                expected = f"offsets that ascend from 0 to {len(features)}"
                raise ValueError(f"{name}_start: expected {expected}")
        for first in range(0, len(self), CHECK_SIZE):
            some = slice(first, first + CHECK_SIZE)
            limit = self.num_atoms[some].repeat_interleave(self.num_bonds[some])
            begin = int(self.bond_start[first])
            ends = self.ends[:, begin : begin + limit.shape[0]]
            if bool(((ends < 0) | (ends >= limit)).any()):
                raise ValueError("ends: a bond refers to an atom that its molecule does not have")
        positions = torch.cat(list(self.split.values()))
        if positions.numel() and (positions.min() < 0 or positions.max() >= len(self)):
            raise ValueError(f"split: a position is outside the {len(self)} molecules")
        if positions.unique().numel() != positions.numel():
            raise ValueError("split: a molecule is in two parts, or twice in one")


def molecule_set(
    arrays: dict[str, Tensor], parts: Tensor, label_names: tuple[str, ...], kind: str
) -> MoleculeSet:
    """A set of arrays by name, with `num_atoms [G]` and `num_bonds [G]` in place of offsets, and
    `parts [G]`, an index into `PARTS` or a larger number for a molecule in no part."""
    return MoleculeSet(
        arrays["atoms"], arrays["bonds"], arrays["ends"],
        offsets_of(arrays["num_atoms"]), offsets_of(arrays["num_bonds"]),
        arrays["labels"], label_names, kind,
        {name: (parts == at).nonzero().squeeze(1) for at, name in enumerate(PARTS)},
        arrays["source_rows"],
    )  # fmt: skip


def ranges(start: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """The concatenated ranges `start[p], ..., start[p + 1] - 1` for each `p` in `positions`, and
    the offsets of the ranges.

    Example:
        >>> ranges(torch.tensor([0, 2, 5]), torch.tensor([1, 0]))
        (tensor([2, 3, 4, 0, 1]), tensor([0, 3, 5]))
    """
    sizes = start[positions + 1] - start[positions]
    offsets = offsets_of(sizes)
    shift = (start[positions] - offsets[:-1]).repeat_interleave(sizes)
    return torch.arange(shift.shape[0]) + shift, offsets


def offsets_of(sizes: Tensor) -> Tensor:
    """The int64 offsets of consecutive ranges of these sizes, and the end of the last.

    Example:
        >>> offsets_of(torch.tensor([2, 3]))
        tensor([0, 2, 5])
    """
    return torch.nn.functional.pad(sizes.cumsum(0, dtype=torch.int64), (1, 0))


def _check(name: str, found: Tensor, shape: tuple[int, ...], *dtypes: torch.dtype) -> None:
    if tuple(found.shape) != shape:
        raise ValueError(f"{name}: expected shape {shape}, found {tuple(found.shape)}")
    if found.dtype not in dtypes:
        wanted = " or ".join(str(dtype) for dtype in dtypes)
        raise TypeError(f"{name}: expected {wanted}, found {found.dtype}")
