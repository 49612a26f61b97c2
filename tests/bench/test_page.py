"""The numbers on the pages about performance and stability are those of the records."""

import json

import performance
import pytest

from python_blocks import ROOT


@pytest.mark.parametrize("page", ["performance.md", "stability.md"])
def test_tables_are_those_of_the_records(page):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert performance.BLOCK.search(text)
    assert performance.refresh(text) == text, "run: python docs/figures/performance.py"


def test_profile_is_that_of_the_record():
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    profile = json.loads(
        (ROOT / "benchmarks" / "profiles" / "h200.json").read_text(encoding="utf-8")
    )
    for row in profile["rows"]:
        spent = row["microseconds"]
        names = ("matrix products", "hidden_adjoints", "activate", "hidden_adjoint", "elementwise")
        cells = [f"{spent[name] / 1000:.2f}" for name in names]
        rest = sum(spent.values()) - sum(spent[name] for name in names)
        line = f"| {row['sets']:,} | {row['precision']} | {' | '.join(cells)} | {rest / 1000:.2f} |"
        assert line in page
