"""Data sets, by name or from a table, prepared once: one file of featurised molecules, which
training reads instead of the source. It needs neither RDKit nor ogb."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from equipool.experiments.common import cache_folder, data_folder
from equipool.experiments.molecules.features import Problem
from equipool.experiments.molecules.molecule_set import PARTS, TENSORS, MoleculeSet
from equipool.experiments.molecules.sources import RANDOM, MoleculeSource, OgbFolder, SmilesTable
from equipool.files import FileError, load_tensors, save_tensors
from equipool.tables import listed

MOLECULENET = "https://deepchemdata.s3-us-west-1.amazonaws.com/datasets"
OGB = ('Get it with ogb: python -c "from ogb.graphproppred import GraphPropPredDataset as D; '
       "D('ogbg-{name}', root='{folder}')\"")  # fmt: skip
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
    """A public data set."""

    advice: str  # how to get it; {folder} is where it belongs
    forms: tuple[MoleculeSource, ...]  # that it comes in; paths are relative to the data folder


DATASETS = {
    "molhiv": Dataset(
        OGB,
        (
            OgbFolder("ogbg_molhiv"),
            # Newer RDKit versions reject some hypervalent metals. They are kept, to preserve OGB's
            # order and split.
            SmilesTable("molhiv.csv.gz", "smiles", ("HIV_active",), "split", "classification",
                        keep_unsanitised=True),
        ),
    ),
    "molpcba": Dataset(
        OGB,
        (OgbFolder("ogbg_molpcba"), OgbFolder("molpcba")),
    ),
    "toxcast": Dataset(
        f"Put MoleculeNet's {MOLECULENET}/toxcast_data.csv.gz there as toxcast.csv.gz",
        (SmilesTable("toxcast.csv.gz", kind="classification"),),
    ),
    "tox21": Dataset(
        f"Put MoleculeNet's {MOLECULENET}/tox21.csv.gz there",
        (SmilesTable("tox21.csv.gz", labels=TOX21_LABELS, kind="classification"),),
    ),
    "qm9": Dataset(
        f"Put MoleculeNet's {MOLECULENET}/qm9.csv there",
        (
            SmilesTable("qm9.csv.gz", "SMILES", QM9_LABELS, RANDOM, "regression"),
            SmilesTable("qm9.csv", "smiles", QM9_MOLECULENET_LABELS, RANDOM, "regression"),
        ),
    ),
}  # fmt: skip

FILE_KIND = "equipool molecules 1"
MAX_SHOWN = 10  # rejected molecules in a message


@dataclass(frozen=True, eq=False)
class Prepared:
    """A data set, the molecules that RDKit rejected, and the fingerprint of its source."""

    molecules: MoleculeSet
    problems: tuple[Problem, ...]
    fingerprint: str


def load_molecules(which: str | MoleculeSource) -> Prepared:
    """A data set.

    The first call reads the source on all cores and writes one file; later calls read that file. It
    is made again if the source has changed or the file is damaged.

    The file is written to `molecules` in the cache folder, as others may read the data folder, with
    the permissions of the source, and its path is printed. A file in `molecules` in the data folder
    is read as well. For a public data set the file is enough without the source.

    Args:
        which: `"molhiv"`, `"molpcba"`, `"toxcast"`, `"tox21"`, `"qm9"`, or a source such as
            `SmilesTable(path)`.
    """
    if isinstance(which, str):
        forms = [replace(one, path=data_folder() / one.path) for one in DATASETS[which].forms]
    else:
        forms = [which]
    source = next((form for form in forms if not form.missing()), None)
    expected = None if source is None else source.fingerprint()
    own = None if isinstance(which, str) else f"{which.location.name.split('.')[0]}-{expected}"
    folders = data_folder(), cache_folder()
    paths = [folder / "molecules" / f"{own or which}.safetensors" for folder in folders]
    for path in filter(Path.is_file, paths):
        try:
            found = _read(path)
        except FileError:
            if source is None:
                raise
            continue
        if expected in (None, found.fingerprint):
            return found
    if source is None or expected is None:
        raise FileNotFoundError(_advice(which, forms))
    prepared = Prepared(*source.read(), expected)
    path = paths[-1]
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, prepared)
    shutil.copymode(source.files[0], path)
    text = f"{source.location.name}: {describe(prepared)}\nPrepared molecules: {path}"
    print(text, file=sys.stderr)
    return prepared


def _advice(which: str | MoleculeSource, forms: Sequence[MoleculeSource]) -> str:
    """What is missing, and how to get it."""
    missing = " and no ".join(str(form.missing()[0].absolute()) for form in forms)
    if not isinstance(which, str):
        return f"there is no {missing}: check the path (--csv)"
    advice = DATASETS[which].advice.format(name=which, folder=data_folder())
    otherwise = "Or set the data folder with --data-dir or EQUIPOOL_DATA."
    return f"{which}: there is no {missing}. {advice}. {otherwise}"


def describe(prepared: Prepared) -> str:
    """A summary: the labels, the sizes of the parts, and the molecules that RDKit rejected."""
    molecules, problems = prepared.molecules, prepared.problems
    sizes = ", ".join(f"{len(molecules.positions(part)):,} {part}" for part in PARTS)
    lines = [f"{molecules.kind}, labels {listed(molecules.label_names)}; {sizes}"]
    if problems:
        kept = sum(problem.kept for problem in problems)
        lines += [f"RDKit rejects {len(problems):,} molecules, of which {kept:,} are kept:"]
        lines += [f"  row {one.row}: {one.smiles!r}: {one.reason}" for one in problems[:MAX_SHOWN]]
    return "\n".join(lines)


def _read(path: Path) -> Prepared:
    tensors, about = load_tensors(path, FILE_KIND)
    names, kind = tuple(about["label_names"]), about["kind"]
    problems = tuple(Problem(**problem) for problem in about["problems"])
    molecules = MoleculeSet(**tensors, label_names=names, kind=kind)
    return Prepared(molecules, problems, about["fingerprint"])


def _write(path: Path, prepared: Prepared) -> None:
    molecules = prepared.molecules
    tensors = {name: getattr(molecules, name) for name in TENSORS}
    about = {
        "label_names": molecules.label_names, "kind": molecules.kind,
        "problems": [asdict(problem) for problem in prepared.problems],
        "fingerprint": prepared.fingerprint,
    }  # fmt: skip
    save_tensors(path, tensors, about, FILE_KIND)
