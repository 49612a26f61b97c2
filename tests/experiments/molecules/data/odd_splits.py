"""Splits that make it hard for a worker."""

import os
from dataclasses import dataclass

from equipool.experiments.molecules.data.splits import Split


@dataclass(frozen=True)
class Failing(Split):
    def group(self, molecule, smiles, cell):
        raise LookupError(f"no group for {smiles}")

    def assign(self, groups):
        raise AssertionError


@dataclass(frozen=True)
class Ending(Split):
    def group(self, molecule, smiles, cell):
        os._exit(3)

    def assign(self, groups):
        raise AssertionError


@dataclass(frozen=True)
class Printing(Split):
    def group(self, molecule, smiles, cell):
        print("printed", flush=True)
        os.write(1, b"written\n")
        return smiles

    def assign(self, groups):
        raise AssertionError
