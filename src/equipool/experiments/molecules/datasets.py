"""Public data sets, by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from equipool.experiments.molecules.ogb_folder import OgbFolder
from equipool.experiments.molecules.sources import MoleculeSource, SmilesTable
from equipool.experiments.molecules.splits import RANDOM, SCAFFOLD

MOLECULENET = "https://deepchemdata.s3-us-west-1.amazonaws.com/datasets"
OGB = "https://snap.stanford.edu/ogb/data/graphproppred/csv_mol_download"

TOX21_LABELS = (
    "NR-AR", "NR-AR-LBD", "NR-AhR", "NR-Aromatase", "NR-ER", "NR-ER-LBD", "NR-PPAR-gamma",
    "SR-ARE", "SR-ATAD5", "SR-HSE", "SR-MMP", "SR-p53",
)  # fmt: skip
# The customary twelve. The rotational constants are left out: they describe the geometry.
QM9_LABELS = (
    "Dipole_debye", "Polarizability_bohr3", "HOMO_au", "LUMO_au", "HOMO_LUMO_gap_au", "R2_bohr2",
    "ZPVE_au", "InternalEnergy_0K_au", "InternalEnergy_298K_au", "Enthalphy_298K_au",
    "GibbsFreeEnergy_298K_au", "Heatcapacity_Cv_cal_mol_K",
)  # fmt: skip
QM9_MOLECULENET_LABELS = (
    "mu", "alpha", "homo", "lumo", "gap", "r2", "zpve", "u0", "u298", "h298", "g298", "cv",
)  # fmt: skip


@dataclass(frozen=True)
class Dataset:
    """A public data set, and the formats it is distributed in."""

    name: str
    about: str
    forms: tuple[MoleculeSource, ...]  # paths are relative to the data folder
    advice: str  # how to get it; {folder} is where it belongs

    def find(self, folder: Path) -> MoleculeSource | None:
        """The first form that is complete in the folder."""
        here = [form.inside(folder) for form in self.forms]
        return next((form for form in here if not form.missing()), None)

    def describe_missing(self, folder: Path) -> str:
        """What was not found, and how to get it."""
        looked = ", ".join(str(form.path) for form in self.forms)
        found = [f"not found in {folder} (looked for {looked})."]
        for form in (form.inside(folder) for form in self.forms):
            if form.location.is_dir():
                lacks = ", ".join(str(file.relative_to(form.location)) for file in form.missing())
                found.append(f"{form.location} lacks {lacks}.")
        otherwise = "Or set the data folder with --data-dir or EQUIPOOL_DATA."
        return " ".join([f"{self.about}:", *found, self.advice.format(folder=folder), otherwise])


def _from_ogb(name: str, packed: str, about: str, *other_forms: MoleculeSource) -> Dataset:
    """A data set of OGB, with the folder names that `ogb` has used over time, its archive's, and
    our own."""
    paths = (f"ogbg_{name}", f"ogbg_{name}_pyg", packed, name)
    advice = (
        f'Get it with ogb: python -c "from ogb.graphproppred import GraphPropPredDataset as D; '
        f"D('ogbg-{name}', root='{{folder}}')\"; or unpack {OGB}/{packed}.zip there."
    )
    return Dataset(name, about, (*map(OgbFolder, paths), *other_forms), advice)


def _from_moleculenet(file: str, name: str, about: str, *forms: MoleculeSource) -> Dataset:
    return Dataset(name, about, forms, f"Put MoleculeNet's {MOLECULENET}/{file} there.")


# Newer RDKit versions reject some hypervalent metals. They are kept, to preserve OGB's order and
# split.
_HIV = SmilesTable(
    "molhiv.csv.gz", "smiles", ("HIV_active",), "split", "classification", keep_unsanitised=True
)  # fmt: skip
_TOXCAST = SmilesTable("toxcast.csv.gz", kind="classification")
_TOX21 = SmilesTable("tox21.csv.gz", labels=TOX21_LABELS, kind="classification")
_QM9 = SmilesTable("qm9.csv.gz", "SMILES", QM9_LABELS, RANDOM, "regression")
_ALL = (
    _from_ogb(
        "molhiv", "hiv", "ogbg-molhiv, 41,127 molecules and whether they inhibit HIV",
        _HIV, replace(_HIV, path="HIV.csv", split=SCAFFOLD),
    ),
    _from_ogb("molpcba", "pcba", "ogbg-molpcba, 437,929 molecules in 128 assays"),
    _from_moleculenet(
        "toxcast_data.csv.gz", "toxcast", "ToxCast, 8,576 molecules in 617 assays",
        _TOXCAST, replace(_TOXCAST, path="toxcast_data.csv.gz"),
    ),
    _from_moleculenet("tox21.csv.gz", "tox21", "Tox21, 7,831 molecules in 12 assays", _TOX21),
    _from_moleculenet(
        "qm9.csv", "qm9", "QM9, 130,831 molecules and 12 of their properties",
        _QM9, replace(_QM9, path="qm9.csv", smiles="smiles", labels=QM9_MOLECULENET_LABELS),
    ),
)  # fmt: skip
DATASETS = {dataset.name: dataset for dataset in _ALL}


def dataset_named(name: str) -> Dataset:
    """The data set of this name, with or without OGB's prefix `ogbg-`."""
    short = name.removeprefix("ogbg-")
    if short not in DATASETS:
        raise ValueError(f"unknown data set {name!r}: expected one of {', '.join(DATASETS)}")
    return DATASETS[short]
