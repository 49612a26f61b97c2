"""A table of the form of Tox21, and a refusal to prepare one."""

from molecule_files import ODD, write_csv

from equipool.experiments.molecules.data import loading

SMILES = [*ODD] * 30  # more than a batch
TOX21 = ["NR-AR", "NR-AR-LBD", "NR-AhR", "NR-Aromatase", "NR-ER", "NR-ER-LBD", "NR-PPAR-gamma",
         "SR-ARE", "SR-ATAD5", "SR-HSE", "SR-MMP", "SR-p53"]  # fmt: skip


def write_table(folder, smiles):
    rows = [[text, *(["1", "0", ""] * 4)] for text in smiles]
    return write_csv(folder / "tox21.csv.gz", ["smiles", *TOX21], rows)


def refuse_to_prepare(monkeypatch):
    def refuse(source, path):
        raise AssertionError(f"{path} is made again")

    monkeypatch.setattr(loading, "prepare", refuse)
