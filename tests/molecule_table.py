"""A table of molecules, and runs on it that take a second."""

CORES = ("C1CCCCC1", "c1ccccc1", "c1ccncc1", "C1CCNCC1", "c1ccoc1", "C1CC1")
ENDS = ("", "C", "CC", "CO", "CN", "CCO", "CCl", "C(=O)O")
MOLECULES = tuple(core + end for core in CORES for end in ENDS)
PARTS = ("train", "train", "train", "valid", "test")

TINY = {
    "--width": "8", "--depth": "2", "--potential": "12x8x4", "--inner-steps": "2",
    "--batch-size": "8", "--steps": "20", "--chunk": "10", "--log-every": "10",
    "--evaluate-every": "5", "--checkpoint-every": "5", "--device": "cpu",
}  # fmt: skip


def write_table(path, smiles="structure"):
    """Whether there is oxygen, and a number far from 0."""
    lines = [f"{smiles},oxygen,weight,part"]
    for number, molecule in enumerate(MOLECULES):
        oxygen = int("o" in molecule.lower())
        weight = 12.5 * len(molecule) - 3000
        lines.append(f"{molecule},{oxygen},{weight},{PARTS[number % 5]}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def flags_for(table):
    own = {"--csv": table, "--smiles": "structure", "--labels": "oxygen", "--split": "part"}
    return TINY | own
