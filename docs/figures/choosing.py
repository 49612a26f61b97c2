"""Brings the tables and the picture of measurements/gradients.md up to date with the records.

    python benchmarks/gradients.py --device cpu --out benchmarks/records/cpu-gradients.json
    python docs/figures/choosing.py

Of the records in benchmarks/records that are named MACHINE-gradients.json, or
MACHINE-gradients-PART.json where only some parts were measured, each part of the page shows the
newest of each machine that has it, the CPU's first.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from choosing_page import Records, draw_quality, newest, refresh
from gradients_record import read_gradient_record

FIGURES = Path(__file__).parent
PAGE = FIGURES.parent / "measurements" / "gradients.md"
RECORDS = FIGURES.parents[1] / "benchmarks" / "records"


def read_records() -> Records:
    """By name. The CPU's comes first by the alphabet, too."""
    files = sorted([*RECORDS.glob("*-gradients.json"), *RECORDS.glob("*-gradients-*.json")])
    return {file.stem: read_gradient_record(file) for file in files}


def draw_all(records: Records, folder: Path) -> None:
    """The picture of the page, of the first machine."""
    record = next(iter(newest(records, "quality").values()))
    draw_quality(record, folder / "choosing-gradients.svg")


if __name__ == "__main__":
    records = read_records()
    PAGE.write_text(refresh(PAGE.read_text(encoding="utf-8"), records), encoding="utf-8")
    draw_all(records, FIGURES)
    print(f"{PAGE.name}: {', '.join(records)}")
