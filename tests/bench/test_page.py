"""The numbers on the page about performance are those of the records."""

import json
from pathlib import Path

import pytest

from equipool.bench.record import read_record
from equipool.bench.table import markdown

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
RECORDS = ROOT / "benchmarks" / "records"


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("cpu-quick", "training"),
        ("cpu-quick", "inference"),
        ("cpu-elements", "training"),
        ("h200-layer", "training"),
        ("h200-steps", "training"),
        ("h200-gin", "training"),
        ("h200-median", "training"),
    ],
)
def test_tables_are_those_of_the_records(name, mode):
    assert markdown(read_record(RECORDS / f"{name}.json"), mode) in PAGE


def test_profile_is_that_of_the_record():
    profile = json.loads(
        (ROOT / "benchmarks" / "profiles" / "h200.json").read_text(encoding="utf-8")
    )
    for row in profile["rows"]:
        spent = row["microseconds"]
        names = ("matrix products", "hidden_adjoints", "activate", "hidden_adjoint", "elementwise")
        cells = [f"{spent[name] / 1000:.2f}" for name in names]
        rest = sum(spent.values()) - sum(spent[name] for name in names)
        line = f"| {row['sets']:,} | {row['precision']} | {' | '.join(cells)} | {rest / 1000:.2f} |"
        assert line in PAGE
