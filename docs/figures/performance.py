"""Brings the tables of performance.md and stability.md up to date with benchmarks/records.

    equipool bench --preset quick --device cpu --out benchmarks/records/cpu-quick.json
    python docs/figures/performance.py
    python benchmarks/plot.py benchmarks/records/*.json --out docs/figures

The pages say which: `<!-- generated: cpu-quick training -->` is followed by the training rows of
cpu-quick.json, `<!-- generated: cpu-stability hard -->` by the rows of a setting.
"""

from __future__ import annotations

import re
import sys
from itertools import groupby
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import stability

from equipool.bench.record import Record, read_record
from equipool.bench.terminal import cells

DOCS = Path(__file__).parents[1]
PAGES = (DOCS / "performance.md", DOCS / "stability.md")
RECORDS = DOCS.parent / "benchmarks" / "records"
BLOCK = re.compile(r"(<!-- generated: (\S+) ([^>]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def refresh(page: str) -> str:
    """The page with new tables."""
    return BLOCK.sub(lambda m: f"{m[1]}\n{table(m[2], m[3])}\n\n{m[4]}", page)


def table(name: str, part: str) -> str:
    """The rows of a record in Markdown: of a mode, or of a setting."""
    file = RECORDS / f"{name}.json"
    if "stability" in name:
        return stability_table(stability.read_stability(file), part)
    return timing_table(read_record(file), part)


def timing_table(record: Record, mode: str) -> str:
    """The timed rows of a mode."""
    lines = [
        "| sets x elements, T | path | ms, quartiles | MiB | x PyG | x floor | error y | error g |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case, group in groupby((r for r in record.rows if r.mode == mode), key=lambda r: r.case):
        rows = [row for row in group if row.timing is not None]
        pyg = [row.timing.median for row in rows if row.path == "pyg" and row.timing is not None]
        for row in rows:
            ms, quartiles, *rest = cells(row, min(pyg, default=None))
            first = [f"{case.sets:,} x {case.elements:,}, {case.num_steps}"]
            path = f"{row.path}, {row.precision}"
            lines.append("| " + " | ".join([*first, path, f"{ms} ({quartiles})", *rest]) + " |")
    return "\n".join(lines)


def stability_table(record: stability.StabilityRecord, setting: str) -> str:
    """The rows of a setting."""
    columns = stability.COLUMNS
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    rows = (row for row in record.rows if row.setting == setting)
    return "\n".join([*lines, *(f"| {' | '.join(stability.cells(row))} |" for row in rows)])


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(refresh(page.read_text(encoding="utf-8")), encoding="utf-8")
