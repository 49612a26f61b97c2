"""Public data sets, by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from equipool.experiments.molecules.data.ogb_source import OgbFolder
from equipool.experiments.molecules.data.sources import CsvSource, MoleculeSource
from equipool.experiments.molecules.data.splits import ColumnSplit, RandomSplit, ScaffoldSplit

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
        """What was not found, what is incomplete, and how to get it."""
        here = [form.inside(folder) for form in self.forms]
        looked = ", ".join(form.location.name for form in here)
        incomplete = [
            f"{form.location} lacks "
            f"{', '.join(str(file.relative_to(form.location)) for file in form.missing())}."
            for form in here
            if form.location.exists()
        ]
        missing = f"{self.about}: not found in {folder} (looked for {looked})."
        otherwise = "Or set the data folder with --data-dir or EQUIPOOL_DATA."
        return " ".join([missing, *incomplete, self.advice.format(folder=folder), otherwise])


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
_HIV = CsvSource(
    "molhiv.csv.gz", "smiles", ("HIV_active",), ColumnSplit("split"), "classification",
    keep_unsanitised=True,
)  # fmt: skip
_TOXCAST = CsvSource("toxcast.csv.gz", kind="classification")
_TOX21 = CsvSource("tox21.csv.gz", labels=TOX21_LABELS, kind="classification")
_QM9 = CsvSource("qm9.csv.gz", "SMILES", QM9_LABELS, RandomSplit(), "regression")
_ALL = (
    _from_ogb(
        "molhiv", "hiv", "ogbg-molhiv, 41,127 molecules and whether they inhibit HIV",
        _HIV, replace(_HIV, path="molhiv.csv"),
        replace(_HIV, path="HIV.csv", split=ScaffoldSplit()),
    ),
    _from_ogb("molpcba", "pcba", "ogbg-molpcba, 437,929 molecules in 128 assays"),
    _from_moleculenet(
        "toxcast_data.csv.gz", "toxcast", "ToxCast, 8,576 molecules in 617 assays",
        *(replace(_TOXCAST, path=f"toxcast{end}") for end in (".csv.gz", ".csv", "_data.csv.gz")),
    ),
    _from_moleculenet(
        "tox21.csv.gz", "tox21", "Tox21, 7,831 molecules in 12 assays",
        _TOX21, replace(_TOX21, path="tox21.csv"),
    ),
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
