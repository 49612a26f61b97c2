"""Splits that make it hard for a worker."""

import os
from dataclasses import dataclass

from equipool.experiments.molecules.data.splits import Split


class NeverAssigned(Split):
    def assign(self, groups):
        raise AssertionError


@dataclass(frozen=True)
class Failing(NeverAssigned):
    def group(self, molecule, smiles, cell):
        raise LookupError(f"no group for {smiles}")


@dataclass(frozen=True)
class Ending(NeverAssigned):
    def group(self, molecule, smiles, cell):
        os._exit(3)


@dataclass(frozen=True)
class Printing(NeverAssigned):
    def group(self, molecule, smiles, cell):
        print("printed", flush=True)
        os.write(1, b"written\n")
        return smiles
