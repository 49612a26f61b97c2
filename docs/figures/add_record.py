"""Adds a finished run to the records: `python docs/figures/add_record.py --help`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from records import RECORDS, Run

KEPT = {"seed", "steps", "complete", "seconds", "training_seconds", "num_parameters",
        "together", "config", "versions", "hardware", "date"}  # fmt: skip


def line_of(folder: Path, study: str, label: str) -> dict[str, Any]:
    """The line of a run, from its `record.json`."""
    record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    entries = record["curve"]
    curve = {name: [entry[name] for entry in entries] for name in ("step", "training_seconds")}
    for name in entries[0]["metrics"]:
        curve[name] = [entry["metrics"][name] for entry in entries]
    kept = {name: value for name, value in record.items() if name in KEPT}
    return {"study": study, "label": label, "name": folder.name, **kept, "curve": curve}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, nargs="+", help="directory of a finished run")
    parser.add_argument("--experiment", required=True, help="file in records/, without .jsonl")
    parser.add_argument("--study", required=True)
    parser.add_argument("--label", required=True, help="name of the method in the tables")
    chosen = parser.parse_args()
    with (RECORDS / f"{chosen.experiment}.jsonl").open("a", encoding="utf-8") as stream:
        for folder in chosen.run:
            line = line_of(folder, chosen.study, chosen.label)
            Run(**line)  # complains about what is missing
            stream.write(json.dumps(line, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
